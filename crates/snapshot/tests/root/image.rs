//! Images made here: unpacked by us, and written down for others.

use std::{fs, path::Path};

use base::Digest;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use snapshot::{
    ApplyOptions, Limits, Snapshots, SnapshotsConfig, Snapshotter, apply_layer, chain_ids,
};
use store::Store;

/// Archives, lowest first.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) layers: Vec<Vec<u8>>,
}

pub(crate) fn digest(bytes: &[u8]) -> Digest {
    Digest::sha256(Sha256::digest(bytes).into())
}

impl Image {
    pub(crate) fn new(layers: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self { layers: layers.into_iter().collect() }
    }

    pub(crate) fn diff_ids(&self) -> Vec<Digest> {
        self.layers.iter().map(|layer| digest(layer)).collect()
    }

    pub(crate) fn chain_ids(&self) -> Vec<Digest> {
        chain_ids(&self.diff_ids())
    }

    pub(crate) fn top(&self) -> Option<Digest> {
        self.chain_ids().pop()
    }

    /// Applies all layers at once, highest first, and commits them in order.
    pub(crate) async fn unpack(&self, snapshots: &Snapshots) {
        let chain = self.chain_ids();
        let stagings: Vec<_> = (0..chain.len())
            .rev()
            .map(|n| {
                let parent = n.checked_sub(1).map(|below| &chain[below]);
                let staging = snapshots.stage(&chain[n], parent).unwrap();
                let (archive, dir) = (self.layers[n].clone(), staging.dir().clone());
                let diff_id = Some(digest(&archive));
                let options = ApplyOptions { limits: Limits::default(), diff_id };
                let applying =
                    tokio::task::spawn_blocking(move || apply_layer(&archive[..], &dir, &options));
                (staging, applying)
            })
            .collect();
        for (staging, applying) in stagings.into_iter().rev() {
            let applied = applying.await.unwrap().unwrap();
            snapshots.commit(staging, applied).await.unwrap();
        }
    }

    /// As an OCI layout with one image called `test`.
    pub(crate) fn write_layout(&self, dir: &Path) {
        fs::create_dir_all(dir.join("blobs/sha256")).unwrap();
        let blob = |bytes: &[u8], kind: &str| -> Value {
            let digest = digest(bytes);
            fs::write(dir.join("blobs/sha256").join(digest.hex()), bytes).unwrap();
            json!({ "mediaType": kind, "digest": digest.as_str(), "size": bytes.len() })
        };
        let layers: Vec<_> = self
            .layers
            .iter()
            .map(|layer| blob(layer, "application/vnd.oci.image.layer.v1.tar"))
            .collect();
        let diff_ids: Vec<_> = self.diff_ids().iter().map(ToString::to_string).collect();
        let config = json!({
            "architecture": "amd64", "os": "linux", "config": {},
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        let config = config.to_string();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": blob(config.as_bytes(), "application/vnd.oci.image.config.v1+json"),
            "layers": layers,
        });
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let mut descriptor = blob(manifest.to_string().as_bytes(), kind);
        descriptor["annotations"] = json!({ "org.opencontainers.image.ref.name": "test" });
        let index = json!({ "schemaVersion": 2, "manifests": [descriptor] });
        fs::write(dir.join("index.json"), index.to_string()).unwrap();
        fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    }
}

/// A store and a snapshotter in a directory.
pub(crate) struct Rig {
    pub(crate) store: Store,
    pub(crate) snapshots: Snapshots,
}

impl Rig {
    pub(crate) async fn open(dir: &Path, snapshotter: Snapshotter) -> Self {
        let store = Store::open(dir.join("state")).unwrap();
        let mut config = SnapshotsConfig::new(dir.join("snapshots"), snapshotter);
        config.usage_period = std::time::Duration::from_millis(50);
        let snapshots = Snapshots::open(config, &store).await.unwrap();
        Self { store, snapshots }
    }

    pub(crate) async fn close(self) {
        self.snapshots.close().await;
        drop(self.snapshots);
        self.store.close().await.unwrap();
    }
}
