//! What happens between a runtime and its plugins, told to whoever watches.
//!
//! **Invariant:** nobody waits for a watcher. One that falls behind is told so and has lost
//! its place; while nobody watches nothing is even put into words.

use std::{error::Error, fmt, sync::Arc};

use nri_wire::api::{ContainerAdjustment, ContainerEviction, ContainerUpdate};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::broadcast;

use crate::story::stripped;

/// Notices a watcher may be behind. With one more it has lost its place.
const BEHIND: usize = 1024;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum Notice {
    /// A plugin is asked from now on.
    Joined { plugin: String, events: String },
    /// It did not get that far.
    NotJoined { plugin: String, why: String },
    /// It is not asked any more.
    Left { plugin: String },
    /// The process of one that we started is gone.
    Ended { plugin: String, status: String },
    /// What it said to a request; null where that was nothing.
    Answered {
        plugin: String,
        #[serde(flatten)]
        about: About,
        micros: u64,
        asked: Value,
    },
    /// It refused, or did not answer; `fatal` if the request fails for it.
    Failed {
        plugin: String,
        #[serde(flatten)]
        about: About,
        micros: u64,
        why: String,
        fatal: bool,
    },
    /// A request is over; `error` if it failed.
    Decided {
        #[serde(flatten)]
        about: About,
        error: Option<String>,
    },
    /// A container was changed, or not, because plugins asked for it.
    Changed {
        container: String,
        #[serde(default)]
        pod_name: String,
        #[serde(default)]
        container_name: String,
        by: String,
        /// The request with whose answer it came, or `unsolicited`.
        #[serde(default)]
        cause: String,
        asked: Value,
        error: Option<String>,
    },
    /// A plugin was told what exists; `error` if it did not take it.
    Synchronized {
        plugin: String,
        pods: usize,
        containers: usize,
        micros: u64,
        asked: Value,
        error: Option<String>,
    },
}

/// What a request was about. Of one about a pod the container is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct About {
    pub event: String,
    pub pod: String,
    pub pod_name: String,
    pub container: String,
    pub container_name: String,
}

/// `CreateContainer web/nginx`.
impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { event, pod_name, container_name, .. } = self;
        match container_name.as_str() {
            "" => write!(f, "{event} {pod_name}"),
            name => write!(f, "{event} {pod_name}/{name}"),
        }
    }
}

/// Why there is nothing more to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    #[error("too slow: {0} notices were lost")]
    Behind(u64),
    #[error("NRI has stopped")]
    Stopped,
}

/// One watcher's view, from the moment it was made.
#[derive(Debug)]
pub struct Watch {
    notices: broadcast::Receiver<Arc<Notice>>,
}

impl Watch {
    /// The next notice.
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> Result<Arc<Notice>, WatchEnd> {
        self.notices.recv().await.map_err(|error| match error {
            broadcast::error::RecvError::Lagged(lost) => WatchEnd::Behind(lost),
            broadcast::error::RecvError::Closed => WatchEnd::Stopped,
        })
    }

    /// The next notice, if there is one already.
    pub fn try_next(&mut self) -> Result<Option<Arc<Notice>>, WatchEnd> {
        match self.notices.try_recv() {
            Ok(notice) => Ok(Some(notice)),
            Err(broadcast::error::TryRecvError::Empty) => Ok(None),
            Err(broadcast::error::TryRecvError::Lagged(lost)) => Err(WatchEnd::Behind(lost)),
            Err(broadcast::error::TryRecvError::Closed) => Err(WatchEnd::Stopped),
        }
    }
}

/// Where notices come from.
#[derive(Debug)]
pub(crate) struct Feed {
    watchers: broadcast::Sender<Arc<Notice>>,
}

impl Default for Feed {
    fn default() -> Self {
        Self { watchers: broadcast::Sender::new(BEHIND) }
    }
}

impl Feed {
    pub(crate) fn watch(&self) -> Watch {
        Watch { notices: self.watchers.subscribe() }
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watchers.receiver_count() > 0
    }

    /// `notice` is called only if somebody watches.
    pub(crate) fn tell(&self, notice: impl FnOnce() -> Notice) {
        if self.is_watched() {
            // Whoever left meanwhile does not miss it.
            let _ = self.watchers.send(Arc::new(notice()));
        }
    }
}

/// What a plugin asked for in one answer, by the names of the wire; null where nothing.
pub(crate) fn asked(
    adjust: Option<&ContainerAdjustment>,
    updates: &[ContainerUpdate],
    evictions: &[ContainerEviction],
) -> Value {
    let mut asked = Map::new();
    let mut put = |name: &str, value: serde_json::Result<Value>| match value.map(stripped) {
        Ok(Value::Null) | Err(_) => {}
        Ok(value) => drop(asked.insert(name.to_owned(), value)),
    };
    put("adjust", serde_json::to_value(adjust));
    put("update", serde_json::to_value(updates));
    put("evict", serde_json::to_value(evictions));
    if asked.is_empty() { Value::Null } else { Value::Object(asked) }
}

/// An error with all its causes.
pub(crate) fn whole(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(number: usize) -> Notice {
        Notice::Left { plugin: format!("{:02}-x", number % 100) }
    }

    #[tokio::test]
    async fn a_watcher_that_is_too_slow_loses_its_place_and_nobody_else_does() {
        let feed = Feed::default();
        feed.tell(|| panic!("nobody watches"));
        let (mut slow, mut quick) = (feed.watch(), feed.watch());
        for number in 0..BEHIND + 3 {
            feed.tell(|| left(number));
            assert_eq!(*quick.next().await.unwrap(), left(number));
        }
        assert_eq!(slow.next().await, Err(WatchEnd::Behind(3)));
        assert_eq!(quick.try_next(), Ok(None));
        drop(feed);
        assert_eq!(quick.next().await, Err(WatchEnd::Stopped));
    }

    #[test]
    fn notices_are_plain_json() {
        let about = About { event: "CreateContainer".into(), pod: "p".into(), ..About::default() };
        let notice = Notice::Decided { about, error: Some("no".into()) };
        let json = serde_json::to_value(&notice).unwrap();
        assert_eq!((&json["what"], &json["event"]), (&"decided".into(), &"CreateContainer".into()));
        assert_eq!(serde_json::from_value::<Notice>(json).unwrap(), notice);
        assert_eq!(asked(Some(&ContainerAdjustment::default()), &[], &[]), Value::Null);
    }
}
