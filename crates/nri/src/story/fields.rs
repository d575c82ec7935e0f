//! Where fields of NRI are in an OCI specification.

use nri_wire::api::{ContainerAdjustment, Field};
use serde_json::Value;

use crate::owners::FieldKey;

/// What a field, or an entry of one, is in a specification as JSON; null where it is not.
pub(super) fn find(spec: &Value, FieldKey { field, key }: &FieldKey) -> Value {
    let key = key.as_deref().unwrap_or_default();
    let found = match place(*field) {
        Place::At(path) => spec.pointer(path),
        Place::In(path) => spec.pointer(path).and_then(|map| map.get(key)),
        Place::Among(path, name) => entry(spec, path, |entry| entry[name] == *key),
        Place::Rlimits => {
            let named = |entry: &Value| {
                let name = entry["type"].as_str().unwrap_or_default();
                name.trim_start_matches("RLIMIT_") == key.trim_start_matches("RLIMIT_")
            };
            entry(spec, "/process/rlimits", named)
        }
        Place::Env => return env(spec, key),
        Place::Nowhere => None,
    };
    found.cloned().unwrap_or_default()
}

/// What is in no specification, because it has become something else there: as it was asked for.
pub(super) fn asked(adjust: &ContainerAdjustment, FieldKey { field, key }: &FieldKey) -> Value {
    let resources = || adjust.linux.as_ref().and_then(|linux| linux.resources.as_ref());
    let class = match field {
        Field::CdiDevices => return key.clone().into(),
        Field::BlockioClass => resources().and_then(|r| r.blockio_class.as_ref()),
        Field::RdtClass => resources().and_then(|r| r.rdt_class.as_ref()),
        _ => None,
    };
    class.map(|class| class.value.clone()).into()
}

enum Place {
    At(&'static str),
    /// A map by key.
    In(&'static str),
    /// A list, whose entries have the key under a name.
    Among(&'static str, &'static str),
    Rlimits,
    Env,
    Nowhere,
}

fn place(field: Field) -> Place {
    match field {
        Field::Annotations => Place::In("/annotations"),
        Field::Mounts => Place::Among("/mounts", "destination"),
        Field::OciHooks => Place::At("/hooks"),
        Field::Devices => Place::Among("/linux/devices", "path"),
        Field::Env => Place::Env,
        Field::Args => Place::At("/process/args"),
        Field::MemLimit => Place::At("/linux/resources/memory/limit"),
        Field::MemReservation => Place::At("/linux/resources/memory/reservation"),
        Field::MemSwapLimit => Place::At("/linux/resources/memory/swap"),
        Field::MemKernelLimit => Place::At("/linux/resources/memory/kernel"),
        Field::MemTcpLimit => Place::At("/linux/resources/memory/kernelTCP"),
        Field::MemSwappiness => Place::At("/linux/resources/memory/swappiness"),
        Field::MemDisableOomKiller => Place::At("/linux/resources/memory/disableOOMKiller"),
        Field::MemUseHierarchy => Place::At("/linux/resources/memory/useHierarchy"),
        Field::CpuShares => Place::At("/linux/resources/cpu/shares"),
        Field::CpuQuota => Place::At("/linux/resources/cpu/quota"),
        Field::CpuPeriod => Place::At("/linux/resources/cpu/period"),
        Field::CpuRealtimeRuntime => Place::At("/linux/resources/cpu/realtimeRuntime"),
        Field::CpuRealtimePeriod => Place::At("/linux/resources/cpu/realtimePeriod"),
        Field::CpuSetCpUs => Place::At("/linux/resources/cpu/cpus"),
        Field::CpuSetMems => Place::At("/linux/resources/cpu/mems"),
        Field::PidsLimit => Place::At("/linux/resources/pids/limit"),
        Field::HugepageLimits => Place::Among("/linux/resources/hugepageLimits", "pageSize"),
        Field::CgroupsUnified => Place::In("/linux/resources/unified"),
        Field::CgroupsPath => Place::At("/linux/cgroupsPath"),
        Field::OomScoreAdj => Place::At("/process/oomScoreAdj"),
        Field::Rlimits => Place::Rlimits,
        Field::IoPriority => Place::At("/process/ioPriority"),
        Field::SeccompPolicy => Place::At("/linux/seccomp"),
        Field::Namespace => Place::Among("/linux/namespaces", "type"),
        Field::Sysctl => Place::In("/linux/sysctl"),
        Field::LinuxNetDevices => Place::In("/linux/netDevices"),
        Field::LinuxSched => Place::At("/process/scheduler"),
        Field::RdtClosId => Place::At("/linux/intelRdt/closID"),
        Field::RdtSchemata => Place::At("/linux/intelRdt/schemata"),
        Field::RdtEnableMonitoring => Place::At("/linux/intelRdt/enableMonitoring"),
        Field::MemoryPolicy => Place::At("/linux/memoryPolicy"),
        Field::None | Field::CdiDevices | Field::BlockioClass | Field::RdtClass => Place::Nowhere,
    }
}

fn entry<'a>(spec: &'a Value, path: &str, is: impl Fn(&Value) -> bool) -> Option<&'a Value> {
    let list = spec.pointer(path)?.as_array()?;
    list.iter().find(|entry| is(entry))
}

fn env(spec: &Value, name: &str) -> Value {
    let list = spec.pointer("/process/env").and_then(Value::as_array);
    let value = |entry: &Value| {
        let (key, value) = entry.as_str()?.split_once('=')?;
        (key == name).then(|| value.to_owned())
    };
    list.into_iter().flatten().find_map(value).into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entries_are_found_by_their_keys() {
        let spec = json!({
            "annotations": { "a": "1" },
            "process": {
                "env": ["PATH=/bin", "A=x=y"],
                "rlimits": [{ "type": "RLIMIT_NOFILE", "soft": 1, "hard": 2 }],
                "oomScoreAdj": 5,
            },
            "mounts": [{ "destination": "/d", "source": "/s" }],
        });
        let check = |field, key: Option<&str>, want: Value| {
            let key = FieldKey { field, key: key.map(str::to_owned) };
            assert_eq!(find(&spec, &key), want, "{key}");
        };
        check(Field::Env, Some("A"), json!("x=y"));
        check(Field::Env, Some("PAT"), Value::Null);
        check(Field::Annotations, Some("a"), json!("1"));
        check(Field::Mounts, Some("/d"), spec["mounts"][0].clone());
        check(Field::Mounts, Some("/e"), Value::Null);
        check(Field::Rlimits, Some("NOFILE"), spec["process"]["rlimits"][0].clone());
        check(Field::OomScoreAdj, None, json!(5));
        check(Field::Devices, Some("/dev/x"), Value::Null);
        check(Field::CdiDevices, Some("a/b=c"), Value::Null);
    }
}
