//! Annotations that address a container, a pod, or whoever has none of its own.

use std::collections::BTreeMap;

/// What the pod's annotations say about `key` for one container: `key/container.NAME`, else
/// `key/pod`, else `key`.
///
/// ```
/// # use std::collections::BTreeMap;
/// let annotations = BTreeMap::from([
///     ("class.example.dev/pod".to_owned(), "slow".to_owned()),
///     ("class.example.dev/container.web".to_owned(), "fast".to_owned()),
/// ]);
/// let class = |name| nri_wire::effective_annotation(&annotations, "class.example.dev", name);
/// assert_eq!(class("web"), Some("fast"));
/// assert_eq!(class("db"), Some("slow"));
/// ```
pub fn effective_annotation<'a>(
    annotations: &'a BTreeMap<String, String>,
    key: &str,
    container: &str,
) -> Option<&'a str> {
    let keys = [format!("{key}/container.{container}"), format!("{key}/pod"), key.to_owned()];
    keys.iter().find_map(|key| annotations.get(key)).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_key_wins() {
        let all = ["k", "k/pod", "k/container.c"];
        for present in 0..8_usize {
            let mut chosen = all.iter().enumerate().filter(|(i, _)| present & (1 << i) != 0);
            let annotations: BTreeMap<String, String> =
                chosen.clone().map(|(_, k)| ((*k).to_owned(), (*k).to_owned())).collect();
            let want = chosen.next_back().map(|(_, k)| *k);
            assert_eq!(effective_annotation(&annotations, "k", "c"), want);
        }
    }
}
