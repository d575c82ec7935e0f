//! The Task service, under either of its names: versions 2 and 3 have the same messages.

use std::time::Duration;

use api_shim::name;
use prost::Message;
use ttrpc::{Client, Context, MethodName};

use crate::ShimError;

#[derive(Clone, Debug)]
pub(crate) struct Task {
    client: Client,
    service: &'static str,
}

impl Task {
    /// `version` as a shim tells it when it starts; `None` for one that is not known.
    pub(crate) fn new(client: Client, version: u32) -> Option<Self> {
        let service = match version {
            2 => name::TASK_V2,
            3 => name::TASK_V3,
            _ => return None,
        };
        Some(Self { client, service })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    pub(crate) async fn call<Req, Res>(
        &self,
        method: &'static str,
        limit: Duration,
        request: &Req,
    ) -> Result<Res, ShimError>
    where
        Req: Message,
        Res: Message + Default,
    {
        self.ask(method, &Context::timeout(limit), limit, request).await
    }

    /// Without limit: ends with the process that is waited for, or with the connection.
    pub(crate) async fn wait<Req, Res>(
        &self,
        method: &'static str,
        request: &Req,
    ) -> Result<Res, ShimError>
    where
        Req: Message,
        Res: Message + Default,
    {
        self.ask(method, &Context::new(), Duration::MAX, request).await
    }

    async fn ask<Req, Res>(
        &self,
        method: &'static str,
        context: &Context,
        limit: Duration,
        request: &Req,
    ) -> Result<Res, ShimError>
    where
        Req: Message,
        Res: Message + Default,
    {
        let name = MethodName { service: self.service, method };
        let answer = self.client.call(name, context, request).await;
        answer.map_err(|e| ShimError::of_call(method, limit, e))
    }
}
