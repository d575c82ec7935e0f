use std::fmt;

use base::{Digest, Repository};
use bytes::Bytes;
use tokio::{sync::mpsc, time::sleep};

use super::{
    Registry,
    credentials::Credentials,
    endpoint::{Endpoint, Fetched},
    error::{Refusal, RegistryError},
    tries::Tries,
};
use crate::image::manifest::Descriptor;

/// One repository as one pull sees it. Requests may run in parallel and share grants.
pub struct Session {
    registry: Registry,
    repository: Repository,
    credentials: Credentials,
    /// In the order of the configuration, the registry itself last.
    endpoints: Vec<Endpoint>,
}

/// Who sent which part of a blob.
#[derive(Clone, Debug)]
pub struct Contribution {
    server: usize,
    /// It was asked to begin somewhere, and said it did.
    by_range: bool,
}

/// Why a blob did not arrive.
#[derive(Debug)]
pub enum BlobError {
    Registry(RegistryError),
    /// Whoever takes the bytes has stopped taking them, and knows why.
    ReceiverGone,
}

/// What a request needs its server to be able to do.
#[derive(Clone, Copy)]
enum Need {
    Resolve,
    Pull,
}

impl Session {
    pub(super) fn new(
        registry: Registry,
        repository: Repository,
        credentials: Credentials,
        endpoints: Vec<Endpoint>,
    ) -> Self {
        Self { registry, repository, credentials, endpoints }
    }

    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// Whether `other` would meet the same servers as the same user.
    pub fn is_like(&self, other: &Self) -> bool {
        self.repository == other.repository && self.credentials == other.credentials
    }

    /// The digest a tag stands for, or proof that a digest is there and may be pulled.
    /// `None` if the registry answers such questions only with the document.
    ///
    /// Cancel safe.
    pub async fn head(
        &self,
        reference: &str,
        want: Option<&Digest>,
    ) -> Result<Option<Digest>, RegistryError> {
        let mut tries = self.tries(need(want), None);
        while let Some(endpoint) = self.next(&mut tries).await {
            match endpoint.1.head(reference).await {
                Ok(found) => return Ok(self.answered(endpoint.1, found)),
                Err(refusal) => self.refused(&mut tries, endpoint, refusal),
            }
        }
        Err(self.give_up(tries, reference))
    }

    /// A manifest or index, by tag or by digest.
    ///
    /// Cancel safe.
    pub async fn manifest(
        &self,
        reference: &str,
        want: Option<&Digest>,
    ) -> Result<Fetched, RegistryError> {
        let mut tries = self.tries(need(want), want);
        while let Some(endpoint) = self.next(&mut tries).await {
            match endpoint.1.manifest(reference, want).await {
                Ok(found) => return Ok(self.answered(endpoint.1, found)),
                Err(refusal) => self.refused(&mut tries, endpoint, refusal),
            }
        }
        Err(self.give_up(tries, reference))
    }

    /// Sends the bytes of a blob from `from` on, over as many connections and servers as it
    /// takes. They are counted but not hashed: the receiver does that, and tells
    /// [`Session::wrong_bytes`] what came of it.
    ///
    /// Not cancel safe: what was sent stays sent.
    pub async fn blob(
        &self,
        blob: &Descriptor,
        mut from: u64,
        to: &mpsc::Sender<Bytes>,
        contributions: &mut Vec<Contribution>,
    ) -> Result<(), BlobError> {
        let mut tries = self.tries(Need::Pull, Some(&blob.digest));
        while let Some((server, endpoint)) = self.next(&mut tries).await {
            let began = from;
            let ranges = self.registry.0.health.has_ranges(endpoint.name());
            match fetch(endpoint, blob, &mut from, ranges, to).await {
                Ok(()) => {
                    contributions.push(Contribution { server, by_range: ranges && began > 0 });
                    self.registry.0.health.answered(endpoint.name());
                    return Ok(());
                }
                Err(Stop::ReceiverGone) => return Err(BlobError::ReceiverGone),
                Err(Stop::Refusal(Refusal::Range(_))) if ranges => {
                    // Asked again from the beginning, which it surely can.
                    self.registry.0.health.breaks_ranges(endpoint.name());
                    tries.again(server);
                }
                Err(Stop::Refusal(refusal)) => {
                    self.refused(&mut tries, (server, endpoint), refusal);
                    if from > began {
                        contributions.push(Contribution { server, by_range: ranges && began > 0 });
                        tries.progressed(server, from - began);
                    }
                }
            }
        }
        Err(BlobError::Registry(self.give_up(tries, blob.digest.as_str())))
    }

    /// The bytes were not what they should be. Remembers it against those who sent them;
    /// true if another attempt would go differently.
    pub fn wrong_bytes(&self, blob: &Digest, contributions: &[Contribution]) -> bool {
        let health = &self.registry.0.health;
        let mut learnt = false;
        for Contribution { server, by_range } in contributions {
            let name = self.endpoints[*server].name();
            if *by_range && health.has_ranges(name) {
                // Its pieces may be right and only in the wrong place.
                health.breaks_ranges(name);
                learnt = true;
            } else {
                health.lied(name, blob);
            }
        }
        let honest =
            |endpoint: &Endpoint| endpoint.host.pull && !health.is_liar(endpoint.name(), blob);
        learnt || self.endpoints.iter().any(honest)
    }

    // === order ===

    fn tries(&self, need: Need, about: Option<&Digest>) -> Tries {
        let health = &self.registry.0.health;
        let able = |endpoint: &Endpoint| match need {
            Need::Resolve => endpoint.host.resolve,
            Need::Pull => endpoint.host.pull,
        };
        let numbered = self.endpoints.iter().enumerate();
        let mut fit: Vec<usize> =
            numbered.filter(|(_, endpoint)| able(endpoint)).map(|(at, _)| at).collect();
        // A server that sent wrong bytes is asked again only if there is no other.
        let is_liar = |&at: &usize| {
            about.is_some_and(|digest| health.is_liar(self.endpoints[at].name(), digest))
        };
        if !fit.iter().all(is_liar) {
            fit.retain(|at| !is_liar(at));
        }
        let (mut order, late): (Vec<_>, Vec<_>) =
            fit.into_iter().partition(|&at| !health.is_late(self.endpoints[at].name()));
        order.extend(late);
        Tries::new(order, self.registry.0.config.rounds)
    }

    async fn next(&self, tries: &mut Tries) -> Option<(usize, &Endpoint)> {
        let next = tries.next()?;
        if !next.after.is_zero() {
            sleep(next.after).await;
        }
        Some((next.server, &self.endpoints[next.server]))
    }

    fn answered<T>(&self, endpoint: &Endpoint, answer: T) -> T {
        self.registry.0.health.answered(endpoint.name());
        answer
    }

    fn refused(&self, tries: &mut Tries, (server, endpoint): (usize, &Endpoint), refusal: Refusal) {
        if refusal.is_hang() {
            self.registry.0.health.hung(endpoint.name());
        }
        tries.refused(server, refusal);
    }

    fn give_up(&self, tries: Tries, reference: &str) -> RegistryError {
        let separator = if reference.contains(':') { '@' } else { ':' };
        let what = format!("{}{separator}{reference}", self.repository);
        tries.give_up(what, |server| self.endpoints[server].name().to_owned())
    }
}

fn need(want: Option<&Digest>) -> Need {
    if want.is_some() { Need::Pull } else { Need::Resolve }
}

enum Stop {
    Refusal(Refusal),
    ReceiverGone,
}

/// From one server over one connection; `from` says how far it came.
async fn fetch(
    endpoint: &Endpoint,
    blob: &Descriptor,
    from: &mut u64,
    ranges: bool,
    to: &mpsc::Sender<Bytes>,
) -> Result<(), Stop> {
    let mut arriving = endpoint.blob(blob, *from, ranges).await.map_err(Stop::Refusal)?;
    while let Some(piece) =
        arriving.next(endpoint.patience.progress).await.map_err(Stop::Refusal)?
    {
        let len = piece.len() as u64;
        to.send(piece).await.map_err(|_| Stop::ReceiverGone)?;
        *from += len;
    }
    Ok(())
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<&str> = self.endpoints.iter().map(Endpoint::name).collect();
        write!(f, "Session({}, {servers:?})", self.repository)
    }
}
