//! What is remembered of an image, and the rules of its names.
//!
//! One record per image; its id is the digest of the configuration, so the same image from
//! two registries is one. A name stands for one image at a time.

use std::collections::{BTreeMap, BTreeSet};

use base::{Digest, ImageQuery, ImageRef, time::Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    digest::chain_ids,
    image::{
        config::{ImageConfig, ImageUser},
        manifest::{Descriptor, Manifest},
        platform::Platform,
    },
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// Digest of the configuration.
    pub id: Digest,
    pub config_size: u64,
    /// Each name and the root it stood for when it was pulled.
    pub names: BTreeMap<ImageRef, Digest>,
    /// What names point to: indexes or manifests. Usually one; several when the same image
    /// was compressed or indexed differently elsewhere.
    pub roots: BTreeMap<Digest, Root>,
    /// Of the uncompressed layers, lowest first.
    pub diff_ids: Vec<Digest>,
    pub platform: Platform,
    /// As the configuration writes it: `name[:group]`.
    pub user: String,
    pub labels: BTreeMap<String, String>,
    #[serde(with = "instant")]
    pub created: Option<Timestamp>,
    /// When it was last pulled or loaded.
    #[serde(with = "instant")]
    pub pulled: Option<Timestamp>,
}

/// One form of the image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    pub media_type: String,
    /// Index, if there is one, and manifest.
    pub documents: Vec<StoredBlob>,
    /// Compressed, lowest first.
    pub layers: Vec<StoredLayer>,
    /// Whether the compressed layers are kept once they are unpacked.
    pub keeps_layers: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredBlob {
    pub digest: Digest,
    pub size: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredLayer {
    pub digest: Digest,
    pub size: u64,
    pub media_type: String,
}

mod instant {
    use base::time::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        at: &Option<Timestamp>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match at {
            Some(at) => to.collect_str(at),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
    }
}

impl store::Record for ImageRecord {
    const TABLE: &'static str = "images";
    const VERSION: u32 = 1;
    type Key = Digest;

    fn key(&self) -> Digest {
        self.id.clone()
    }
}

impl Root {
    pub fn new(documents: Vec<StoredBlob>, media_type: String, manifest: &Manifest) -> Self {
        let layer = |layer: &Descriptor| StoredLayer {
            digest: layer.digest.clone(),
            size: layer.size,
            media_type: layer.media_type.clone(),
        };
        let layers = manifest.layers.iter().map(layer).collect();
        Self { media_type, documents, layers, keeps_layers: true }
    }

    /// The one that lists the layers.
    pub fn manifest(&self) -> Option<&StoredBlob> {
        self.documents.last()
    }

    pub(crate) fn blobs(&self) -> impl Iterator<Item = (&Digest, u64)> {
        let layers = self.layers.iter().filter(|_| self.keeps_layers);
        let layers = layers.map(|layer| (&layer.digest, layer.size));
        self.documents.iter().map(|blob| (&blob.digest, blob.size)).chain(layers)
    }
}

impl ImageRecord {
    /// An image that has no names yet.
    pub fn new(id: Digest, config_size: u64, config: &ImageConfig) -> Self {
        Self {
            id,
            config_size,
            names: BTreeMap::new(),
            roots: BTreeMap::new(),
            diff_ids: config.diff_ids.clone(),
            platform: config.platform.clone(),
            user: config.process.user.clone(),
            labels: config.process.labels.clone(),
            created: config.created,
            pulled: Some(Timestamp::now()),
        }
    }

    /// Every blob the image needs, and its size; some perhaps twice.
    pub fn blobs(&self) -> impl Iterator<Item = (&Digest, u64)> {
        let roots = self.roots.values().flat_map(Root::blobs);
        std::iter::once((&self.id, self.config_size)).chain(roots)
    }

    pub fn chain_ids(&self) -> Vec<Digest> {
        chain_ids(&self.diff_ids)
    }

    /// `name:tag`, sorted.
    pub fn repo_tags(&self) -> impl Iterator<Item = &ImageRef> {
        self.names.keys().filter(|name| name.digest().is_none())
    }

    /// `name@digest`, sorted.
    pub fn repo_digests(&self) -> impl Iterator<Item = &ImageRef> {
        self.names.keys().filter(|name| name.digest().is_some())
    }

    /// Compressed bytes of the first form: what a pull transfers, kept or not.
    pub fn size(&self) -> u64 {
        let root = self.roots.values().next();
        let layers = root.into_iter().flat_map(|root| &root.layers).map(|layer| layer.size);
        let documents = root.into_iter().flat_map(|root| &root.documents).map(|blob| blob.size);
        layers.chain(documents).fold(self.config_size, u64::saturating_add)
    }

    pub fn image_user(&self) -> Option<ImageUser> {
        ImageUser::parse(&self.user)
    }

    /// Forms nobody names go; one always stays, for an image known by its id alone.
    fn drop_unnamed_roots(&mut self) {
        let named: BTreeSet<&Digest> = self.names.values().collect();
        if named.is_empty() {
            while self.roots.len() > 1 {
                self.roots.pop_last();
            }
        } else {
            self.roots.retain(|digest, _| named.contains(digest));
        }
    }

    /// Without the forms that `keep` refuses, and without their names.
    pub(crate) fn only_roots(&self, keep: impl Fn(&Root) -> bool) -> Self {
        let mut rest = self.clone();
        rest.roots.retain(|_, root| keep(root));
        let Self { names, roots, .. } = &mut rest;
        names.retain(|_, root| roots.contains_key(root));
        rest
    }

    fn without_name(&self, name: &ImageRef) -> Self {
        let mut rest = self.clone();
        rest.names.remove(name);
        rest.drop_unnamed_roots();
        rest
    }
}

/// What a pull of `name` that led to `root` gives the image: the tag, and the digest it
/// stands for today. A name with both is a name by digest.
pub(crate) fn names_of_pull(name: &ImageRef, root: &Digest) -> Vec<ImageRef> {
    let pinned = ImageRef::pinned(name.repository().clone(), root.clone());
    match (name.digest(), name.tag()) {
        (None, Some(tag)) => {
            vec![ImageRef::tagged(name.repository().clone(), tag.clone()), pinned]
        }
        _ => vec![pinned],
    }
}

/// Makes `image` known: joined with the record of the same image, its names taken from
/// whoever had them. Returns the records to write.
pub(crate) fn adopt<'a>(
    known: impl Iterator<Item = &'a ImageRecord>,
    mut image: ImageRecord,
) -> Vec<ImageRecord> {
    let mut changed = Vec::new();
    for other in known {
        if other.id == image.id {
            let earlier = other.clone();
            image.names = earlier.names.into_iter().chain(image.names).collect();
            image.roots = earlier.roots.into_iter().chain(image.roots).collect();
            continue;
        }
        let taken: Vec<&ImageRef> =
            other.names.keys().filter(|name| image.names.contains_key(name)).collect();
        if !taken.is_empty() {
            changed
                .push(taken.into_iter().fold(other.clone(), |rest, name| rest.without_name(name)));
        }
    }
    image.drop_unnamed_roots();
    changed.push(image);
    changed
}

/// What is left of `image` once `name` is taken away; none if that was its last tag and
/// nothing but digests of its repository remain.
pub(crate) fn untag(image: &ImageRecord, name: &ImageRef) -> Option<ImageRecord> {
    let mut rest = image.without_name(name);
    let repository = name.repository();
    let tagged = rest.repo_tags().any(|other| other.repository() == repository);
    if name.digest().is_none() && !tagged {
        // Docker's rule: the digests came with the tags and go with the last one.
        rest.names.retain(|other, _| other.repository() != repository);
        rest.drop_unnamed_roots();
    }
    (!rest.names.is_empty()).then_some(rest)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found<T> {
    One(T),
    None,
    Several,
}

/// The image a client means.
pub(crate) fn find<T: AsRef<ImageRecord>>(known: &[T], query: &ImageQuery) -> Found<usize> {
    let by_name = |name: &ImageRef| {
        // A digest says which image is meant, whatever the tag says.
        let exact = match name.digest() {
            Some(digest) => ImageRef::pinned(name.repository().clone(), digest.clone()),
            None => name.clone(),
        };
        known.iter().position(|image| image.as_ref().names.contains_key(&exact))
    };
    let found = match query {
        ImageQuery::Id(id) => known.iter().position(|image| image.as_ref().id == *id),
        ImageQuery::Name(name) => by_name(name),
        ImageQuery::NameOrPrefix { name, id_prefix } => match by_name(name) {
            Some(at) => Some(at),
            None => {
                let starts = |image: &T| image.as_ref().id.hex().starts_with(id_prefix.as_str());
                let mut matching = (0..known.len()).filter(|&at| starts(&known[at]));
                let first = matching.next();
                if matching.next().is_some() {
                    return Found::Several;
                }
                first
            }
        },
    };
    found.map_or(Found::None, Found::One)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::sync::Arc;

    use super::*;
    use crate::digest::sha256;

    fn root(text: &str) -> (Digest, Root) {
        let digest = sha256(text.as_bytes());
        let documents = vec![StoredBlob { digest: digest.clone(), size: 10 }];
        let media_type = crate::image::media::OCI_LAYER_GZIP.to_owned();
        let layer = StoredLayer { digest: sha256(b"layer"), size: 100, media_type };
        (
            digest,
            Root { media_type: String::new(), documents, layers: vec![layer], keeps_layers: true },
        )
    }

    /// An image whose id is the digest of `id`, pulled by each of `names` (`name=root`).
    fn image(id: &str, names: &[&str]) -> ImageRecord {
        let config = ImageConfig::parse(br#"{"rootfs":{}}"#).expect("parses");
        let mut image = ImageRecord::new(sha256(id.as_bytes()), 5, &config);
        for pull in names {
            let (name, root_name) = pull.split_once('=').expect("has a root");
            let (digest, root) = root(root_name);
            for name in names_of_pull(&name.parse().expect("a name"), &digest) {
                image.names.insert(name, digest.clone());
            }
            image.roots.insert(digest, root);
        }
        image
    }

    fn tags(image: &ImageRecord) -> Vec<String> {
        image.repo_tags().map(|name| name.familiar()).collect()
    }

    #[test]
    fn a_tag_pull_gives_tag_and_digest_and_a_digest_pull_only_that() {
        let by_tag = image("a", &["busybox=r"]);
        assert_eq!(tags(&by_tag), ["busybox:latest"]);
        assert_eq!(by_tag.repo_digests().count(), 1);
        let digest = root("r").0;
        let by_digest = image("a", &[&format!("busybox:1@{digest}=r")]);
        assert_eq!(by_digest.repo_tags().count(), 0);
        let digests: Vec<_> = by_digest.repo_digests().map(ToString::to_string).collect();
        assert_eq!(digests, [format!("docker.io/library/busybox@{digest}")]);
        assert_eq!(by_tag.size(), 115);
    }

    #[test]
    fn one_image_collects_the_names_of_all_pulls() {
        let known = [image("a", &["one:1=r"])];
        let changed = adopt(known.iter(), image("a", &["r.example/two:2=s"]));
        assert_eq!(changed.len(), 1);
        assert_eq!(tags(&changed[0]), ["one:1", "r.example/two:2"]);
        assert_eq!(changed[0].roots.len(), 2);
    }

    #[test]
    fn a_tag_moves_and_the_old_image_keeps_its_digest() {
        let known = [image("old", &["app:1=r"]), image("other", &["x:1=q"])];
        let changed = adopt(known.iter(), image("new", &["app:1=s"]));
        let ids: Vec<_> = changed.iter().map(|image| image.id.clone()).collect();
        assert_eq!(ids, [sha256(b"old"), sha256(b"new")]);
        assert_eq!((tags(&changed[0]).len(), changed[0].repo_digests().count()), (0, 1));
        assert_eq!(tags(&changed[1]), ["app:1"]);
    }

    #[test]
    fn an_image_without_names_keeps_one_form() {
        let mut known = image("old", &["app:1=r"]);
        known.names.retain(|name, _| name.digest().is_none());
        let changed = adopt([&known].into_iter(), image("new", &["app:1=s"]));
        assert_eq!((changed[0].names.len(), changed[0].roots.len()), (0, 1));
    }

    #[test]
    fn untagging_takes_the_digests_with_the_last_tag() {
        let image = image("a", &["app:1=r", "app:2=r", "r.example/b:1=r"]);
        let name = |text: &str| text.parse::<ImageRef>().expect("a name");
        let rest = untag(&image, &name("app:1")).expect("others are left");
        assert_eq!((tags(&rest).len(), rest.repo_digests().count()), (2, 2));
        let rest = untag(&rest, &name("app:2")).expect("others are left");
        assert_eq!(
            (tags(&rest), rest.repo_digests().count()),
            (vec!["r.example/b:1".to_owned()], 1)
        );
        assert_eq!(untag(&rest, &name("r.example/b:1")), None);
    }

    #[test]
    fn an_image_is_found_by_whatever_names_it() {
        let known = [Arc::new(image("a", &["one:1=r"])), Arc::new(image("b", &["two=s"]))];
        let check = |text: &str, want| {
            let query = text.parse().expect("a query");
            assert_eq!(find(&known, &query), want, "{text}");
        };
        let id = |text: &str| sha256(text.as_bytes());
        check(id("b").as_str(), Found::One(1));
        check(id("b").hex(), Found::One(1));
        check(&id("b").hex()[..7], Found::One(1));
        check("one:1", Found::One(0));
        check("one", Found::None);
        check("two", Found::One(1));
        check("docker.io/library/two:latest", Found::One(1));
        check(&format!("two@{}", root("s").0), Found::One(1));
        check(&format!("two:whatever@{}", root("s").0), Found::One(1));
        check(&format!("two@{}", root("r").0), Found::None);
        let same = [Arc::new(image("a", &["x=r"])), Arc::new(image("a", &["y=r"]))];
        assert_eq!(find(&same, &id("a").hex()[..5].parse().expect("a query")), Found::Several);
    }

    #[test]
    fn layers_that_are_not_kept_are_not_needed() {
        let mut image = image("a", &["one:1=r"]);
        assert_eq!(image.blobs().count(), 3);
        image.roots.values_mut().for_each(|root| root.keeps_layers = false);
        assert_eq!(image.blobs().count(), 2);
    }

    proptest! {
        /// Whatever is pulled in whatever order, a name stands for one image, and every
        /// name has its root.
        #[test]
        fn names_are_unique(pulls in prop::collection::vec((0..3u8, 0..4u8, 0..3u8), 1..20)) {
            let mut known: BTreeMap<Digest, ImageRecord> = BTreeMap::new();
            for (id, name, root) in pulls {
                let pulled = image(&id.to_string(), &[&format!("n{name}:1=r{id}{root}")]);
                let changed = adopt(known.values(), pulled);
                known.extend(changed.into_iter().map(|image| (image.id.clone(), image)));
            }
            let mut seen = BTreeSet::new();
            for image in known.values() {
                prop_assert!(!image.roots.is_empty());
                for (name, root) in &image.names {
                    prop_assert!(seen.insert(name.clone()), "{} twice", name);
                    prop_assert!(image.roots.contains_key(root));
                }
            }
        }

        #[test]
        fn records_round_trip(id: String, name in "[a-z]{1,9}") {
            let image = image(&id, &[&format!("{name}=r")]);
            let json = serde_json::to_string(&image).expect("encodes");
            prop_assert_eq!(serde_json::from_str::<ImageRecord>(&json).expect("decodes"), image);
        }
    }
}
