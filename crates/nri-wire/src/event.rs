//! Which events a plugin asks for: a bit per event, or their names.

use std::{fmt, str::FromStr};

use crate::api::Event;

/// A set of events. Bit `e - 1` stands for event `e`.
///
/// ```
/// # use nri_wire::{EventMask, api::Event};
/// let mask: EventMask = "CreateContainer,stopcontainer".parse()?;
/// assert_eq!(mask, EventMask::NONE.with(Event::CreateContainer).with(Event::StopContainer));
/// assert_eq!(mask.to_string(), "CreateContainer,StopContainer");
/// # Ok::<(), nri_wire::UnknownEvent>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct EventMask(u16);

/// A mask with bits that no known event has: a plugin built for a newer NRI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid plugin events {:#x}: known are {:#x}", .0, EventMask::ALL.0)]
pub struct InvalidMask(pub i32);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no event is called {0:?}")]
pub struct UnknownEvent(pub String);

/// Every event, in the order of their numbers.
const EVENTS: [Event; 14] = [
    Event::RunPodSandbox,
    Event::StopPodSandbox,
    Event::RemovePodSandbox,
    Event::CreateContainer,
    Event::PostCreateContainer,
    Event::StartContainer,
    Event::PostStartContainer,
    Event::UpdateContainer,
    Event::PostUpdateContainer,
    Event::StopContainer,
    Event::RemoveContainer,
    Event::UpdatePodSandbox,
    Event::PostUpdatePodSandbox,
    Event::ValidateContainerAdjustment,
];

impl EventMask {
    pub const NONE: Self = Self(0);
    pub const ALL: Self = Self((1 << EVENTS.len()) - 1);

    /// What a ConfigureResponse means: 0 is all of them.
    pub fn from_wire(events: i32) -> Result<Self, InvalidMask> {
        match u16::try_from(events) {
            Ok(0) => Ok(Self::ALL),
            Ok(bits) if bits & !Self::ALL.0 == 0 => Ok(Self(bits)),
            _ => Err(InvalidMask(events)),
        }
    }

    /// For a ConfigureResponse. An empty mask cannot be said there: it means all.
    pub fn to_wire(self) -> i32 {
        i32::from(self.0)
    }

    #[must_use]
    pub fn with(self, event: Event) -> Self {
        Self(self.0 | bit(event))
    }

    #[must_use]
    pub fn without(self, event: Event) -> Self {
        Self(self.0 & !bit(event))
    }

    pub fn contains(self, event: Event) -> bool {
        self.0 & bit(event) != 0
    }

    /// Whether all of `other` is in it.
    pub fn includes(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = Event> {
        EVENTS.into_iter().filter(move |event| self.contains(*event))
    }
}

/// 0 for what is not an event.
fn bit(event: Event) -> u16 {
    match event {
        Event::Unknown | Event::Last => 0,
        event => 1 << (event as i32 - 1),
    }
}

impl Event {
    /// The name of the call that carries the event, as in `RunPodSandbox`.
    pub fn method(self) -> &'static str {
        match self {
            Self::Unknown => "Unknown",
            Self::RunPodSandbox => "RunPodSandbox",
            Self::StopPodSandbox => "StopPodSandbox",
            Self::RemovePodSandbox => "RemovePodSandbox",
            Self::CreateContainer => "CreateContainer",
            Self::PostCreateContainer => "PostCreateContainer",
            Self::StartContainer => "StartContainer",
            Self::PostStartContainer => "PostStartContainer",
            Self::UpdateContainer => "UpdateContainer",
            Self::PostUpdateContainer => "PostUpdateContainer",
            Self::StopContainer => "StopContainer",
            Self::RemoveContainer => "RemoveContainer",
            Self::UpdatePodSandbox => "UpdatePodSandbox",
            Self::PostUpdatePodSandbox => "PostUpdatePodSandbox",
            Self::ValidateContainerAdjustment => "ValidateContainerAdjustment",
            Self::Last => "Last",
        }
    }
}

/// Names without regard to case, separated by commas; `all`, and the groups `pod` (or
/// `podsandbox`) and `container`: every event with that word in its name.
impl FromStr for EventMask {
    type Err = UnknownEvent;

    fn from_str(text: &str) -> Result<Self, UnknownEvent> {
        let mut mask = Self::NONE;
        for name in text.split(',').map(str::trim) {
            let name = name.to_ascii_lowercase();
            let named = match name.as_str() {
                "all" => Self::ALL,
                "pod" | "podsandbox" => of(|event| event.contains("pod")),
                "container" => of(|event| event.contains("container")),
                name => of(|event| event == name),
            };
            if named.is_empty() {
                return Err(UnknownEvent(name));
            }
            mask = mask.union(named);
        }
        Ok(mask)
    }
}

/// The events whose name, in lower case, is wanted.
fn of(wanted: impl Fn(&str) -> bool) -> EventMask {
    let lower = |event: Event| event.method().to_ascii_lowercase();
    EVENTS.into_iter().filter(|event| wanted(&lower(*event))).fold(EventMask::NONE, EventMask::with)
}

impl fmt::Display for EventMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, event) in self.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{}", event.method())?;
        }
        Ok(())
    }
}

impl fmt::Debug for EventMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventMask({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_of_the_wire() {
        assert_eq!(EventMask::ALL.to_wire(), 0x3FFF);
        for (i, event) in EVENTS.into_iter().enumerate() {
            let mask = EventMask::NONE.with(event);
            assert_eq!(mask.to_wire(), 1 << i);
            assert_eq!(EventMask::from_wire(1 << i), Ok(mask));
            assert!(mask.contains(event) && !EventMask::ALL.without(event).contains(event));
        }
        assert_eq!(EventMask::from_wire(0), Ok(EventMask::ALL));
        for bad in [0x4000, -1, i32::MIN, 0x1_0001] {
            assert_eq!(EventMask::from_wire(bad), Err(InvalidMask(bad)));
        }
        assert_eq!(EventMask::NONE.with(Event::Unknown).with(Event::Last), EventMask::NONE);
    }

    #[test]
    fn names_and_groups() {
        let parse = |text: &str| text.parse::<EventMask>();
        for event in EVENTS {
            assert_eq!(parse(event.method()), Ok(EventMask::NONE.with(event)));
        }
        assert_eq!(parse("ALL"), Ok(EventMask::ALL));
        assert_eq!(parse("pod"), parse("PodSandbox"));
        assert_eq!(parse("pod").unwrap().iter().count(), 5);
        let container = parse("container").unwrap();
        assert!(container.contains(Event::ValidateContainerAdjustment));
        assert_eq!(parse("pod, container"), Ok(EventMask::ALL));
        assert_eq!(parse("CreateContainers"), Err(UnknownEvent("createcontainers".into())));
        assert!(parse("").is_err());
        assert_eq!(parse(&EventMask::ALL.to_string()), Ok(EventMask::ALL));
    }
}
