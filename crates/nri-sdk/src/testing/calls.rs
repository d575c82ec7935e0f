//! The calls of a fake runtime. Like a real one it calls only what was subscribed to; what
//! was not is answered as if the plugin wanted nothing.

use nri_wire::api::{
    self, Container, CreateContainerRequest, Event, PodSandbox, StateChangeEvent,
    StopContainerRequest, UpdateContainerRequest, UpdatePodSandboxRequest,
    ValidateContainerAdjustmentRequest,
};

use super::FakeRuntime;
use crate::{Changes, Creation, Plugin, PodResources, Proposal, Resources, Updates, Verdict};

type Called<T = ()> = Result<T, ttrpc::Error>;

macro_rules! notices {
    ($($(#[$doc:meta])* $method:ident($($argument:ident: $type:ty),*), $request:ident, $event:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// Cancel safe for the runtime; the plugin's handler is dropped.
        pub async fn $method(&self, $($argument: &$type),*) -> Called {
            if !self.session.events.contains(Event::$event) {
                return Ok(());
            }
            let ctx = self.config.ctx();
            if self.config.state_change {
                let mut change =
                    StateChangeEvent { $($argument: Some($argument.clone()),)* ..Default::default() };
                change.set_event(Event::$event);
                self.session.plugin.state_change(&ctx, &change).await?;
            } else {
                let request = api::$request { $($argument: Some($argument.clone())),* };
                self.session.plugin.$method(&ctx, &request).await?;
            }
            Ok(())
        }
    )*};
}

impl<P: Plugin> FakeRuntime<P> {
    notices! {
        /// A pod is about to become ready.
        run_pod_sandbox(pod: PodSandbox), RunPodSandboxRequest, RunPodSandbox;
        /// The resources of a pod have changed.
        post_update_pod_sandbox(pod: PodSandbox), PostUpdatePodSandboxRequest, PostUpdatePodSandbox;
        /// A pod has stopped.
        stop_pod_sandbox(pod: PodSandbox), StopPodSandboxRequest, StopPodSandbox;
        /// A pod is gone.
        remove_pod_sandbox(pod: PodSandbox), RemovePodSandboxRequest, RemovePodSandbox;
        /// A container has been created.
        post_create_container(pod: PodSandbox, container: Container),
            PostCreateContainerRequest, PostCreateContainer;
        /// A container is about to start.
        start_container(pod: PodSandbox, container: Container),
            StartContainerRequest, StartContainer;
        /// A container has started.
        post_start_container(pod: PodSandbox, container: Container),
            PostStartContainerRequest, PostStartContainer;
        /// The resources of a container have changed.
        post_update_container(pod: PodSandbox, container: Container),
            PostUpdateContainerRequest, PostUpdateContainer;
        /// A container is gone.
        remove_container(pod: PodSandbox, container: Container),
            RemoveContainerRequest, RemoveContainer;
    }

    /// A container is about to be created.
    ///
    /// Cancel safe for the runtime; the plugin's handler is dropped.
    pub async fn create_container(
        &self,
        pod: &PodSandbox,
        container: &Container,
    ) -> Called<Creation> {
        if !self.session.events.contains(Event::CreateContainer) {
            return Ok(Creation::default());
        }
        let request =
            CreateContainerRequest { pod: Some(pod.clone()), container: Some(container.clone()) };
        let plugin = &self.session.plugin;
        Ok(plugin.create_container(&self.config.ctx(), &request).await?.into())
    }

    /// The resources of a container are about to change.
    ///
    /// Cancel safe for the runtime; the plugin's handler is dropped.
    pub async fn update_container(
        &self,
        pod: &PodSandbox,
        container: &Container,
        resources: &Resources,
    ) -> Called<Changes> {
        if !self.session.events.contains(Event::UpdateContainer) {
            return Ok(Changes::default());
        }
        let request = UpdateContainerRequest {
            pod: Some(pod.clone()),
            container: Some(container.clone()),
            linux_resources: Some(resources.to_wire().unwrap_or_default()),
        };
        let plugin = &self.session.plugin;
        Ok(plugin.update_container(&self.config.ctx(), &request).await?.into())
    }

    /// A container has stopped.
    ///
    /// Cancel safe for the runtime; the plugin's handler is dropped.
    pub async fn stop_container(&self, pod: &PodSandbox, container: &Container) -> Called<Updates> {
        if !self.session.events.contains(Event::StopContainer) {
            return Ok(Updates::default());
        }
        let request =
            StopContainerRequest { pod: Some(pod.clone()), container: Some(container.clone()) };
        let plugin = &self.session.plugin;
        Ok(plugin.stop_container(&self.config.ctx(), &request).await?.update.into())
    }

    /// The resources of a pod are about to change.
    ///
    /// Cancel safe for the runtime; the plugin's handler is dropped.
    pub async fn update_pod_sandbox(&self, pod: &PodSandbox, resources: &PodResources) -> Called {
        if !self.session.events.contains(Event::UpdatePodSandbox) {
            return Ok(());
        }
        let request = UpdatePodSandboxRequest {
            pod: Some(pod.clone()),
            overhead_linux_resources: resources.overhead.to_wire(),
            linux_resources: resources.resources.to_wire(),
        };
        self.session.plugin.update_pod_sandbox(&self.config.ctx(), &request).await?;
        Ok(())
    }

    /// Asks for a judgement.
    ///
    /// # Panics
    /// When the proposed adjustment cannot be sent.
    ///
    /// Cancel safe for the runtime; the plugin's handler is dropped.
    pub async fn validate_container_adjustment(&self, proposal: &Proposal) -> Called<Verdict> {
        if !self.session.events.contains(Event::ValidateContainerAdjustment) {
            return Ok(Verdict::Accept);
        }
        let Proposal { pod, container, adjustment, updates, owners, plugins } = proposal.clone();
        let adjust = adjustment.try_into().expect("an adjustment that can be sent");
        // It is large, and lives as long as the call.
        let request = Box::new(ValidateContainerAdjustmentRequest {
            pod: Some(pod),
            container: Some(container),
            adjust: Some(adjust),
            update: updates.into(),
            owners: Some(owners.into()),
            plugins,
        });
        let plugin = &self.session.plugin;
        let answer = plugin.validate_container_adjustment(&self.config.ctx(), &request).await?;
        Ok(if answer.reject { Verdict::Reject(answer.reason) } else { Verdict::Accept })
    }

    /// Says that the runtime is about to go.
    ///
    /// Cancel safe for the runtime; the plugin's handler is dropped.
    pub async fn shutdown(&self) -> Called {
        self.session.plugin.shutdown(&self.config.ctx(), &api::Empty {}).await?;
        Ok(())
    }
}
