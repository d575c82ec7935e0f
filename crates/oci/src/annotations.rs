//! What the OCI runtime is told beside the spec proper, and the classes users ask for that way.

use std::collections::HashMap;

use base::Labels;

use crate::{
    builder::Inputs,
    facts::{CgroupDriver, HandlerFacts, PodFacts},
    request::ContainerRequest,
};

/// Kata, gVisor and others read these; the names are the ones they know.
const PREFIX: &str = "io.kubernetes.cri.";

/// crun would put the container into a group below its scope, and its limits there too, where
/// nobody looks for them.
const SUBGROUP: &str = "run.oci.systemd.subgroup";

/// What patterns let through, over it what we say ourselves.
pub(crate) fn build(inputs: &Inputs<'_>) -> HashMap<String, String> {
    let own = passed(&inputs.request.annotations, &inputs.handler.container_annotations);
    let more = [("container-name", &*inputs.request.name), ("image-name", &*inputs.image.name)];
    let passed = of_pod(inputs.pod, inputs.handler).into_iter().chain(own);
    let systemd = inputs.handler.cgroup_driver == CgroupDriver::Systemd;
    let subgroup = systemd.then(|| (SUBGROUP.to_owned(), String::new()));
    passed.chain(ours(inputs.pod, "container", &more)).chain(subgroup).collect()
}

/// By these a shim knows that a task is a pod, and which containers belong to it.
pub fn of_sandbox(pod: &PodFacts, handler: &HandlerFacts) -> HashMap<String, String> {
    of_pod(pod, handler).into_iter().chain(ours(pod, "sandbox", &[])).collect()
}

fn of_pod(pod: &PodFacts, handler: &HandlerFacts) -> Vec<(String, String)> {
    passed(&pod.annotations, &handler.pod_annotations)
}

/// Last, so that nobody can say otherwise.
fn ours(pod: &PodFacts, kind: &str, more: &[(&str, &str)]) -> Vec<(String, String)> {
    let ours = [
        ("container-type", kind),
        ("sandbox-id", pod.id.as_str()),
        ("sandbox-name", &pod.name),
        ("sandbox-namespace", &pod.namespace),
        ("sandbox-uid", &pod.uid),
    ];
    let all = ours.iter().chain(more);
    all.map(|(key, value)| (format!("{PREFIX}{key}"), (*value).to_owned())).collect()
}

fn passed(labels: &Labels, patterns: &[String]) -> Vec<(String, String)> {
    let any = |key: &str| patterns.iter().any(|pattern| path_matches(pattern, key));
    let pairs = labels.into_iter().filter(|(key, _)| any(key));
    pairs.map(|(key, value)| (key.clone(), value.clone())).collect()
}

// === classes ===

/// What a pod's author may choose by annotation: of the container, of the pod for one container,
/// of the pod for all, in that order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Class<'a> {
    pub(crate) name: &'a str,
    /// The key that said so.
    pub(crate) field: String,
}

/// The classes that a container of this pod is asked to be in, by name: what has to be looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classes<'a> {
    pub block_io: Option<&'a str>,
    pub rdt: Option<&'a str>,
}

pub fn classes<'a>(request: &'a ContainerRequest, pod_annotations: &'a Labels) -> Classes<'a> {
    let name = |kind: &str| class(request, pod_annotations, kind).map(|class| class.name);
    Classes { block_io: name("blockio"), rdt: name("rdt") }
}

pub(crate) fn asked_class<'a>(inputs: &Inputs<'a>, kind: &str) -> Option<Class<'a>> {
    class(inputs.request, &inputs.pod.annotations, kind)
}

fn class<'a>(request: &'a ContainerRequest, pod: &'a Labels, kind: &str) -> Option<Class<'a>> {
    let own = format!("{PREFIX}{kind}-class");
    let for_one = format!("{kind}.resources.beta.kubernetes.io/container.{}", request.name);
    let for_all = format!("{kind}.resources.beta.kubernetes.io/pod");
    [(&request.annotations, own), (pod, for_one), (pod, for_all)].into_iter().find_map(
        |(labels, key)| {
            let name = labels.get(&key)?;
            Some(Class { name, field: format!("annotations[{key:?}]") })
        },
    )
}

// === patterns ===

/// As shells match paths: `*` and `?` stop at `/`, `[a-z]` and `[^a-z]` take one character, `\`
/// takes the next one as it is. A pattern that makes no sense matches nothing.
pub fn path_matches(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    matches_from(&pattern, &text)
}

/// Where to go back to when the rest does not fit: after the last `*`, one character later.
/// Going back further never helps, so this is quadratic at worst.
fn matches_from(pattern: &[char], text: &[char]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    loop {
        let step = match pattern.get(p) {
            None if t == text.len() => return true,
            None => None,
            Some('*') => {
                retry = Some((p + 1, t));
                p += 1;
                continue;
            }
            Some(_) => text.get(t).and_then(|&c| one(&pattern[p..], c)),
        };
        match (step, retry) {
            (Some(used), _) => (p, t) = (p + used, t + 1),
            (None, Some((after, from))) if text.get(from).is_some_and(|&c| c != '/') => {
                retry = Some((after, from + 1));
                (p, t) = (after, from + 1);
            }
            (None, _) => return false,
        }
    }
}

/// How much of the pattern takes this character.
fn one(pattern: &[char], c: char) -> Option<usize> {
    match pattern {
        ['?', ..] => (c != '/').then_some(1),
        ['\\', literal, ..] => (*literal == c).then_some(2),
        ['\\'] => None,
        ['[', rest @ ..] => class_of(rest, c).map(|used| used + 1),
        [literal, ..] => (*literal == c).then_some(1),
        [] => None,
    }
}

/// After the `[`.
fn class_of(pattern: &[char], c: char) -> Option<usize> {
    let negated = pattern.first() == Some(&'^');
    let mut i = usize::from(negated);
    let first = i;
    let mut found = false;
    loop {
        match pattern.get(i)? {
            ']' if i > first => break,
            _ => {}
        }
        let (low, next) = class_end(pattern, i)?;
        let (high, next) = match pattern.get(next) {
            Some('-') => class_end(pattern, next + 1)?,
            _ => (low, next),
        };
        found |= (low..=high).contains(&c);
        i = next;
    }
    (found != negated && c != '/').then_some(i + 1)
}

fn class_end(pattern: &[char], i: usize) -> Option<(char, usize)> {
    match pattern.get(i)? {
        '\\' => Some((*pattern.get(i + 1)?, i + 2)),
        '-' | ']' => None,
        c => Some((*c, i + 1)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns() {
        let check = |pattern: &str, text: &str, want| {
            assert_eq!(path_matches(pattern, text), want, "{pattern} on {text}");
        };
        check("a.b/c", "a.b/c", true);
        check("a.b/c", "a.b/cd", false);
        check("a.b/*", "a.b/c", true);
        check("a.b/*", "a.b/", true);
        check("*", "a.b/c", false);
        check("*/*", "a.b/c", true);
        check("*.b/*", "a.b/c", true);
        check("*a*b", "xaxaxb", true);
        check("*a*b", "xaxaxc", false);
        check("*/b*", "a/x/b", false);
        check("?.b", "a.b", true);
        check("?b", "/b", false);
        check("[a-c]x", "bx", true);
        check("[^a-c]x", "bx", false);
        check("[^a-c]x", "dx", true);
        check("[]x", "]x", false);
        check("[a", "a", false);
        check("\\*", "*", true);
        check("\\*", "a", false);
        check("a\\", "a\\", false);
        check("", "", true);
    }

    proptest! {
        #[test]
        fn no_pattern_panics(pattern in "[a/*?\\[\\]^\\\\-]{0,12}", text in "[a/b]{0,12}") {
            path_matches(&pattern, &text);
        }

        #[test]
        fn a_text_matches_itself_quoted(text: String) {
            let quoted: String = text.chars().flat_map(|c| ['\\', c]).collect();
            prop_assert!(path_matches(&quoted, &text));
        }

        #[test]
        fn many_stars_stay_quick(stars in 1_usize..60) {
            let pattern = "*a".repeat(stars) + "b";
            path_matches(&pattern, &"a".repeat(2000));
        }
    }
}
