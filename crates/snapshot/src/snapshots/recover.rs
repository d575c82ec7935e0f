//! What a start makes of what the last run left.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::Path,
    sync::Arc,
};

use base::Digest;
use store::Table;

use super::{
    Result,
    layout::{Layout, entries},
    mount,
};
use crate::{Key, LayerRecord, SnapshotError, SnapshotRecord, Snapshotter};

/// What did not come through. Nobody is asked; the daemon logs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Recorded, but not there, not synced before the power went, or on one of these. The
    /// next pull unpacks them again.
    pub lost_layers: Vec<(Digest, &'static str)>,
    /// Recorded, and not to be mounted any more: for the container there is only removal.
    pub broken_snapshots: Vec<(Key, &'static str)>,
    /// Directories without a record, thrown away.
    pub orphans: usize,
}

pub(crate) fn recover(
    snapshotter: Snapshotter,
    layout: &Layout,
    boot: &str,
    layers: &Table<LayerRecord>,
    snapshots: &Table<SnapshotRecord>,
) -> Result<Recovery> {
    for point in entries(&layout.mapped())? {
        mount::detach(&point)?;
    }
    let layers: Vec<_> =
        layers.list().into_iter().filter(|layer| layer.snapshotter == snapshotter).collect();
    let snapshots: Vec<_> =
        snapshots.list().into_iter().filter(|record| record.snapshotter == snapshotter).collect();
    let lost = lost_layers(&layers, boot, |layer| layout.layer(&layer.chain_id).path.is_dir());
    let broken = snapshots.iter().filter_map(|record| {
        let why = match &record.top {
            _ if !layout.snapshot(&record.key).is_dir() => "its files are gone",
            Some(top) if !layers.iter().any(|layer| layer.chain_id == *top) => {
                "its layers are gone"
            }
            Some(top) if lost.contains_key(top) => "its layers are lost",
            _ => return None,
        };
        Some((record.key.clone(), why))
    });
    let broken_snapshots = broken.collect();
    let known: HashSet<_> = layers.iter().map(|layer| layout.layer(&layer.chain_id).path).collect();
    let kept: HashSet<_> = snapshots.iter().map(|record| layout.snapshot(&record.key)).collect();
    let mut orphans = 0;
    for (dir, named) in
        [(layout.layers(), known), (layout.snapshots(), kept), (layout.staging(), HashSet::new())]
    {
        for path in entries(&dir)?.into_iter().filter(|path| !named.contains(path)) {
            layout.discard(&path)?;
            orphans += 1;
        }
    }
    let mut lost_layers: Vec<_> = lost.into_iter().collect();
    lost_layers.sort();
    Ok(Recovery { lost_layers, broken_snapshots, orphans })
}

/// A layer is lost with any of those below it.
fn lost_layers(
    layers: &[Arc<LayerRecord>],
    boot: &str,
    is_there: impl Fn(&LayerRecord) -> bool,
) -> HashMap<Digest, &'static str> {
    let by_id: HashMap<_, _> = layers.iter().map(|layer| (&layer.chain_id, layer)).collect();
    let mut lost = HashMap::new();
    for layer in layers {
        if !is_there(layer) {
            lost.insert(layer.chain_id.clone(), "its files are gone");
        } else if layer.unsynced_boot.as_deref().is_some_and(|written| written != boot) {
            lost.insert(layer.chain_id.clone(), "the machine went down before it was synced");
        }
    }
    for layer in layers {
        let mut below = layer.parent.as_ref();
        while let Some(id) = below {
            let parent = by_id.get(id);
            if parent.is_none() || lost.contains_key(id) {
                lost.entry(layer.chain_id.clone()).or_insert("a layer below it is lost");
                break;
            }
            below = parent.and_then(|parent| parent.parent.as_ref());
        }
    }
    lost
}

pub(crate) fn boot_id() -> Result<String> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let id = fs::read_to_string(path).map_err(SnapshotError::io("read", path))?;
    Ok(id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::Usage;

    fn id(n: usize) -> Digest {
        format!("sha256:{n:064x}").parse().unwrap()
    }

    fn layer(n: usize, parent: Option<usize>, boot: Option<&str>) -> Arc<LayerRecord> {
        Arc::new(LayerRecord {
            snapshotter: Snapshotter::Overlayfs,
            chain_id: id(n),
            diff_id: id(n),
            parent: parent.map(id),
            usage: Usage::default(),
            created: Timestamp::UNIX_EPOCH,
            unsynced_boot: boot.map(str::to_owned),
        })
    }

    #[track_caller]
    fn check(layers: &[Arc<LayerRecord>], gone: &[usize], want: &[usize]) {
        let gone: Vec<_> = gone.iter().map(|&n| id(n)).collect();
        let lost = lost_layers(layers, "now", |layer| !gone.contains(&layer.chain_id));
        let mut lost: Vec<_> = lost.into_keys().collect();
        lost.sort();
        assert_eq!(lost, want.iter().map(|&n| id(n)).collect::<Vec<_>>());
    }

    #[test]
    fn layers_are_lost_with_those_below() {
        let all = [layer(1, None, None), layer(2, Some(1), None), layer(3, Some(2), None)];
        check(&all, &[], &[]);
        check(&all, &[1], &[1, 2, 3]);
        check(&all, &[2], &[2, 3]);
        check(&all, &[3], &[3]);
        check(&all[1..], &[], &[2, 3]);
    }

    #[test]
    fn what_another_boot_did_not_sync_is_lost() {
        let all = [
            layer(1, None, None),
            layer(2, Some(1), Some("now")),
            layer(3, Some(1), Some("before")),
            layer(4, Some(3), Some("now")),
        ];
        check(&all, &[], &[3, 4]);
    }
}
