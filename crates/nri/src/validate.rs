//! The built-in validator: what no plugin may do to any container, and which plugins must
//! have been asked.
//!
//! It sees what all plugins together made of a creation, with the owner of every field, and
//! accepts or names the offender. Pure.

use std::{collections::BTreeMap, fmt};

use nri_wire::{
    api::{
        Container, Field, PluginInstance, ValidateContainerAdjustmentRequest,
        security_profile::ProfileType,
    },
    effective_annotation,
};

use crate::owners::Owners;

/// Pods name further required plugins in this annotation, as a YAML or JSON list; for one
/// container or all, see [`effective_annotation`].
pub const REQUIRED_PLUGINS_ANNOTATION: &str = "required-plugins.noderesource.dev";

/// What is rejected. Everything is allowed by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DefaultValidator {
    pub reject_oci_hooks: bool,
    /// Adjusting the seccomp policy of a container that asks for the runtime's default, ...
    pub reject_runtime_default_seccomp: bool,
    /// ... for a profile of its own, ...
    pub reject_custom_seccomp: bool,
    /// ... for none.
    pub reject_unconfined_seccomp: bool,
    pub reject_namespaces: bool,
    pub reject_sysctls: bool,
    /// Plugins without which no container is created, by name or `NN-name`.
    pub required_plugins: Vec<String>,
    /// A pod with this annotation set to true does without them.
    pub tolerate_missing_annotation: Option<String>,
}

/// Why a result is not acceptable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    Hooks { plugins: String },
    Seccomp { plugin: String, profile: &'static str },
    Namespaces { offenders: Vec<(String, String)> },
    Sysctls { plugins: Vec<String> },
    Missing { plugins: Vec<String> },
    Annotation { key: String, value: String },
}

impl std::error::Error for Rejection {}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "validation error: ")?;
        match self {
            Self::Hooks { plugins } => write!(f, "{plugins} may not inject OCI hooks"),
            Self::Seccomp { plugin, profile } => {
                write!(f, "{plugin} may not adjust a {profile} seccomp policy")
            }
            Self::Namespaces { offenders } => {
                write!(f, "namespaces may not be adjusted:")?;
                offenders.iter().try_for_each(|(kind, plugin)| write!(f, " {kind} by {plugin}"))
            }
            Self::Sysctls { plugins } => write!(f, "{} may not set sysctls", plugins.join(", ")),
            Self::Missing { plugins } => {
                write!(f, "required but not consulted: {}", plugins.join(", "))
            }
            Self::Annotation { key, value } => write!(f, "invalid {key} annotation {value:?}"),
        }
    }
}

impl DefaultValidator {
    /// Whether it could have anything to say about a pod with these annotations.
    pub fn applies_to(&self, annotations: &BTreeMap<String, String>) -> bool {
        let required = |key: &String| key.starts_with(REQUIRED_PLUGINS_ANNOTATION);
        *self != Self::default() || annotations.keys().any(required)
    }

    /// Whether the pod, or one container of it, does without required plugins.
    pub fn tolerates_missing(
        &self,
        annotations: &BTreeMap<String, String>,
        container: &str,
    ) -> Result<bool, Rejection> {
        let Some(key) = &self.tolerate_missing_annotation else { return Ok(false) };
        let Some(value) = effective_annotation(annotations, key, container) else {
            return Ok(false);
        };
        let invalid = || Rejection::Annotation { key: key.clone(), value: value.to_owned() };
        parse_bool(value).ok_or_else(invalid)
    }

    pub fn check(&self, request: &ValidateContainerAdjustmentRequest) -> Result<(), Rejection> {
        let owners = Owners::from_wire(request.owners.clone().unwrap_or_default());
        let container = request.container.clone().unwrap_or_default();
        if request.adjust.is_some() {
            self.check_hooks(&owners, &container.id)?;
            self.check_seccomp(&owners, &container)?;
            self.check_namespaces(&owners, &container.id)?;
        }
        self.check_required(request, &container.name)?;
        self.check_sysctls(&owners, &container.id)
    }

    fn check_hooks(&self, owners: &Owners, id: &str) -> Result<(), Rejection> {
        match owners.owner(id, Field::OciHooks, None).filter(|_| self.reject_oci_hooks) {
            Some(plugins) => Err(Rejection::Hooks { plugins: plugins.to_owned() }),
            None => Ok(()),
        }
    }

    /// What counts is the profile the container asked for, not what it was adjusted to.
    fn check_seccomp(&self, owners: &Owners, container: &Container) -> Result<(), Rejection> {
        let owner = owners.owner(&container.id, Field::SeccompPolicy, None);
        let Some(owner) = owner else { return Ok(()) };
        let asked = container.linux.as_ref().and_then(|linux| linux.seccomp_profile.as_ref());
        let (rejected, profile) = match asked.map(|profile| profile.profile_type()) {
            None | Some(ProfileType::Unconfined) => (self.reject_unconfined_seccomp, "unconfined"),
            Some(ProfileType::RuntimeDefault) => {
                (self.reject_runtime_default_seccomp, "runtime default")
            }
            Some(ProfileType::Localhost) => (self.reject_custom_seccomp, "custom"),
        };
        match rejected {
            true => Err(Rejection::Seccomp { plugin: owner.to_owned(), profile }),
            false => Ok(()),
        }
    }

    fn check_namespaces(&self, owners: &Owners, id: &str) -> Result<(), Rejection> {
        let offenders = owners.entries(id, Field::Namespace);
        let offenders: Vec<_> =
            offenders.map(|(kind, plugin)| (kind.to_owned(), plugin.to_owned())).collect();
        match self.reject_namespaces && !offenders.is_empty() {
            true => Err(Rejection::Namespaces { offenders }),
            false => Ok(()),
        }
    }

    fn check_sysctls(&self, owners: &Owners, id: &str) -> Result<(), Rejection> {
        let mut plugins: Vec<String> =
            owners.entries(id, Field::Sysctl).map(|(_, plugin)| plugin.to_owned()).collect();
        plugins.dedup();
        match self.reject_sysctls && !plugins.is_empty() {
            true => Err(Rejection::Sysctls { plugins }),
            false => Ok(()),
        }
    }

    /// Plugins that have to be asked about a container, by name or `NN-name`.
    pub(crate) fn required(
        &self,
        annotations: &BTreeMap<String, String>,
        container: &str,
    ) -> Result<Vec<String>, Rejection> {
        let mut required = self.required_plugins.clone();
        let key = REQUIRED_PLUGINS_ANNOTATION;
        if let Some(value) = effective_annotation(annotations, key, container) {
            let invalid =
                |_| Rejection::Annotation { key: key.to_owned(), value: value.to_owned() };
            let named: Vec<String> = serde_saphyr::from_str(value).map_err(invalid)?;
            required.extend(named);
        }
        Ok(required)
    }

    fn check_required(
        &self,
        request: &ValidateContainerAdjustmentRequest,
        container: &str,
    ) -> Result<(), Rejection> {
        let none = BTreeMap::new();
        let annotations = request.pod.as_ref().map_or(&none, |pod| &pod.annotations);
        if self.tolerates_missing(annotations, container)? {
            return Ok(());
        }
        let mut required = self.required(annotations, container)?;
        required.retain(|name| !request.plugins.iter().any(|plugin| is_called(plugin, name)));
        match required.is_empty() {
            true => Ok(()),
            false => Err(Rejection::Missing { plugins: required }),
        }
    }
}

/// By its bare name or by `NN-name`.
fn is_called(plugin: &PluginInstance, name: &str) -> bool {
    plugin.name == name || format!("{}-{}", plugin.index, plugin.name) == name
}

/// What Go takes for a bool.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use nri_wire::api::*;

    use super::*;
    use crate::{Claimant, Creation};

    const TOLERATE: &str = "tolerate.example.dev";

    /// The request validators get when 10-a, and nobody else, adjusts so.
    fn request(
        profile: Option<ProfileType>,
        adjust: ContainerAdjustment,
    ) -> ValidateContainerAdjustmentRequest {
        let profile = profile.map(|kind| SecurityProfile {
            profile_type: kind.into(),
            ..SecurityProfile::default()
        });
        let linux = Some(LinuxContainer { seccomp_profile: profile, ..Default::default() });
        let container =
            Container { id: "c0".into(), name: "web".into(), linux, ..Default::default() };
        let mut creation = Creation::of(container.clone());
        let response = CreateContainerResponse { adjust: Some(adjust), ..Default::default() };
        creation.merge(Claimant::new("10-a"), response).unwrap();
        let merged = creation.finish();
        ValidateContainerAdjustmentRequest {
            pod: Some(PodSandbox::default()),
            container: Some(container),
            adjust: Some(merged.adjust),
            owners: Some(merged.owners.to_wire()),
            plugins: vec![PluginInstance { name: "a".into(), index: "10".into() }],
            ..Default::default()
        }
    }

    fn annotated(pairs: &[(&str, &str)]) -> ValidateContainerAdjustmentRequest {
        let annotations = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let pod = Some(PodSandbox { annotations, ..Default::default() });
        ValidateContainerAdjustmentRequest { pod, ..request(None, ContainerAdjustment::default()) }
    }

    fn linux(linux: LinuxContainerAdjustment) -> ContainerAdjustment {
        ContainerAdjustment { linux: Some(linux), ..Default::default() }
    }

    #[track_caller]
    fn check(
        validator: &DefaultValidator,
        request: &ValidateContainerAdjustmentRequest,
        rejected_for: Option<&str>,
    ) {
        assert_eq!(DefaultValidator::default().check(request), Ok(()), "all is allowed by default");
        let rejection = validator.check(request).err().map(|r| r.to_string());
        let want = rejected_for.map(|why| format!("validation error: {why}"));
        assert_eq!(rejection, want);
    }

    #[test]
    fn hooks_and_namespaces_and_sysctls() {
        let none = request(None, ContainerAdjustment::default());
        let hook = Hook { path: "/h".into(), ..Default::default() };
        let hooks = Some(Hooks { poststop: vec![hook], ..Default::default() });
        let hooked = request(None, ContainerAdjustment { hooks, ..Default::default() });
        let strict = DefaultValidator { reject_oci_hooks: true, ..Default::default() };
        check(&strict, &hooked, Some("10-a may not inject OCI hooks"));
        check(&strict, &none, None);

        let namespaces = vec![LinuxNamespace { r#type: "-cgroup".into(), path: String::new() }];
        let moved = linux(LinuxContainerAdjustment { namespaces, ..Default::default() });
        let strict = DefaultValidator { reject_namespaces: true, ..Default::default() };
        let why = "namespaces may not be adjusted: cgroup by 10-a";
        check(&strict, &request(None, moved), Some(why));
        check(&strict, &none, None);

        let sysctl = [("k".to_owned(), "v".to_owned())].into();
        let tuned = linux(LinuxContainerAdjustment { sysctl, ..Default::default() });
        let strict = DefaultValidator { reject_sysctls: true, ..Default::default() };
        check(&strict, &request(None, tuned), Some("10-a may not set sysctls"));
        check(&strict, &none, None);
    }

    #[test]
    fn seccomp_by_the_profile_that_was_asked_for() {
        let seccomp_policy = Some(LinuxSeccomp::default());
        let adjust = linux(LinuxContainerAdjustment { seccomp_policy, ..Default::default() });
        let no = DefaultValidator::default;
        let validators = [
            (DefaultValidator { reject_unconfined_seccomp: true, ..no() }, "unconfined"),
            (DefaultValidator { reject_runtime_default_seccomp: true, ..no() }, "runtime default"),
            (DefaultValidator { reject_custom_seccomp: true, ..no() }, "custom"),
        ];
        let profiles = [
            (None, "unconfined"),
            (Some(ProfileType::Unconfined), "unconfined"),
            (Some(ProfileType::RuntimeDefault), "runtime default"),
            (Some(ProfileType::Localhost), "custom"),
        ];
        for (validator, rejects) in &validators {
            for (profile, name) in profiles {
                let why = format!("10-a may not adjust a {name} seccomp policy");
                let why = (*rejects == name).then_some(why.as_str());
                check(validator, &request(profile, adjust.clone()), why);
                check(validator, &request(profile, ContainerAdjustment::default()), None);
            }
        }
    }

    #[test]
    fn required_plugins_by_either_name() {
        let requires = |names: &[&str]| DefaultValidator {
            required_plugins: names.iter().map(|&n| n.to_owned()).collect(),
            tolerate_missing_annotation: Some(TOLERATE.to_owned()),
            ..Default::default()
        };
        let plain = annotated(&[]);
        check(&requires(&["a", "10-a"]), &plain, None);
        check(&requires(&["b", "10-b"]), &plain, Some("required but not consulted: b, 10-b"));
        check(&requires(&["b"]), &annotated(&[(TOLERATE, "true")]), None);
        let other = annotated(&[(TOLERATE, "true"), ("tolerate.example.dev/container.web", "f")]);
        check(&requires(&["b"]), &other, Some("required but not consulted: b"));
        let odd = annotated(&[(TOLERATE, "perhaps")]);
        check(&requires(&[]), &odd, Some(r#"invalid tolerate.example.dev annotation "perhaps""#));
    }

    #[test]
    fn pods_require_more_by_annotation_without_any_setting() {
        let missing = |value: &str| {
            let request = annotated(&[(REQUIRED_PLUGINS_ANNOTATION, value)]);
            DefaultValidator::default().check(&request).err()
        };
        assert_eq!(missing("[a]"), None);
        assert_eq!(missing("- 10-a\n- a"), None);
        let b = || Some(Rejection::Missing { plugins: vec!["b".to_owned()] });
        assert_eq!(missing(r#"["a", "b"]"#), b());
        assert_eq!(missing("- b"), b());
        assert!(matches!(missing("{"), Some(Rejection::Annotation { .. })));
    }
}
