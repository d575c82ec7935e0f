//! Pods, containers and images: all policy, and no wire type of any front end.

pub mod health;

use health::Health;

/// The engine that both front ends call.
///
/// It owns no pods yet, and its health says so: a kubelet keeps such a node out of
/// scheduling instead of failing every pod on it.
#[derive(Debug)]
pub struct Engine {
    health: Health,
}

impl Engine {
    pub fn new() -> Self {
        let health = Health::default();
        health.runtime.fail("PodsNotSupported", "this version of the engine runs no pods");
        health.network.fail("NetworkPluginNotReady", "no CNI configuration is loaded");
        Self { health }
    }

    pub fn health(&self) -> &Health {
        &self.health
    }
}

impl Default for Engine {
    fn default() -> Self {
        Self::new()
    }
}
