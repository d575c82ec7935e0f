//! One server, for one pull: requests with its headers, its TLS and our grant.

use std::time::Duration;

use base::Digest;
use bytes::Bytes;
use reqwest::{
    Client, Method, Response, StatusCode,
    header::{
        ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE,
        HeaderMap, HeaderName, HeaderValue, LOCATION, RANGE, RETRY_AFTER, WWW_AUTHENTICATE,
    },
};
use serde::Deserialize;
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};
use url::Url;

use super::{
    auth::{Answer, Challenge, Grant, TokenRequest, grant},
    credentials::Credentials,
    error::Refusal,
    hosts::Host,
    proxy::{self, ProxyRules},
};
use crate::{
    digest::{matches, sha256},
    image::{
        manifest::{Descriptor, MANIFEST_LIMIT},
        media,
    },
};

const REDIRECTS: usize = 8;
/// Of an error's body: enough for a sentence.
const MESSAGE_LIMIT: u64 = 8 << 10;
const TOKEN_LIMIT: u64 = 1 << 20;
/// What a registry may ask us to wait before the next try; longer is cut.
const RETRY_AFTER_LIMIT: Duration = Duration::from_secs(30);

/// How long a server may keep us waiting.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// To connect, unless `hosts.toml` says otherwise.
    pub dial: Duration,
    /// From the request to the beginning of the answer.
    pub answer: Duration,
    /// The same for a blob from the registry itself, to which there is no alternative: a
    /// proxy may fetch all of it first.
    pub blob_answer: Duration,
    /// Between two pieces of the answer.
    pub progress: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        let [dial, answer, blob_answer, progress] = [30, 30, 300, 60].map(Duration::from_secs);
        Self { dial, answer, blob_answer, progress }
    }
}

#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) host: Host,
    /// Or why this server cannot be spoken to at all.
    pub(super) client: Result<Client, Refusal>,
    /// The rules that the client follows, for messages.
    pub(super) proxies: ProxyRules,
    pub(super) patience: Patience,
    /// The registry itself, and not one of its mirrors: nobody is asked after it.
    pub(super) is_last: bool,
    pub(super) repository: String,
    pub(super) credentials: Credentials,
    /// Held while a grant is fetched: parallel requests wait for one and share it.
    pub(super) grant: Mutex<Option<Grant>>,
}

/// A manifest or index and what it was called.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub bytes: Bytes,
    pub digest: Digest,
    pub media_type: Option<String>,
}

/// A blob about to arrive.
#[derive(Debug)]
pub(super) struct Arriving {
    response: Response,
    /// Bytes to ignore first: the server would not begin where we asked it to.
    skip: u64,
    /// Bytes still wanted.
    left: u64,
}

/// A request before it knows its server.
struct Ask {
    method: Method,
    path: String,
    headers: HeaderMap,
    /// The answer is checked against a digest, so it may come by any way.
    by_digest: bool,
    /// How long its answer may take to begin.
    patience: Duration,
}

impl Endpoint {
    /// As messages show it.
    pub(super) fn name(&self) -> &str {
        self.host.base.as_str().trim_end_matches('/')
    }

    // === what registries are asked ===

    /// What `reference` means, without the document. `None` if the server does not say.
    pub(super) async fn head(&self, reference: &str) -> Result<Option<Digest>, Refusal> {
        let by_digest = reference.contains(':');
        let response = match self.send(&self.manifest_ask(Method::HEAD, reference, by_digest)).await
        {
            Err(Refusal::Status { status: 400 | 405 | 501, .. }) => return Ok(None),
            other => other?,
        };
        Ok(content_digest(&response))
    }

    /// By tag or by digest; `want` is checked.
    pub(super) async fn manifest(
        &self,
        reference: &str,
        want: Option<&Digest>,
    ) -> Result<Fetched, Refusal> {
        let ask = self.manifest_ask(Method::GET, reference, want.is_some());
        let response = self.send(&ask).await?;
        let said = content_digest(&response);
        let media_type = header(&response, CONTENT_TYPE.as_str()).map(str::to_owned);
        let bytes = self.body(response, MANIFEST_LIMIT).await?;
        let digest = match want.cloned().or(said) {
            Some(want) if !matches(&want, &bytes) => {
                return Err(Refusal::Digest { want, got: sha256(&bytes) });
            }
            Some(digest) => digest,
            None => sha256(&bytes),
        };
        Ok(Fetched { bytes, digest, media_type })
    }

    fn manifest_ask(&self, method: Method, reference: &str, by_digest: bool) -> Ask {
        let mut headers = HeaderMap::new();
        for media_type in media::ACCEPT_MANIFESTS {
            headers.append(ACCEPT, HeaderValue::from_static(media_type));
        }
        let path = format!("/{}/manifests/{reference}", self.repository);
        Ask { method, path, headers, by_digest, patience: self.patience.answer }
    }

    /// From byte `from` on. With `ranges` false the server is not asked to begin there.
    pub(super) async fn blob(
        &self,
        blob: &Descriptor,
        from: u64,
        ranges: bool,
    ) -> Result<Arriving, Refusal> {
        let mut headers = HeaderMap::new();
        if from > 0 && ranges {
            let range = HeaderValue::try_from(format!("bytes={from}-"));
            headers.insert(RANGE, range.map_err(|e| Refusal::Protocol(e.to_string()))?);
        }
        let path = format!("/{}/blobs/{}", self.repository, blob.digest);
        let patience = if self.is_last { self.patience.blob_answer } else { self.patience.answer };
        let ask = Ask { method: Method::GET, path, headers, by_digest: true, patience };
        let response = match self.send(&ask).await {
            Err(Refusal::Status { status: 416, .. }) => return Err(Refusal::Range(from)),
            other => other?,
        };
        let skip = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let begins = header(&response, CONTENT_RANGE.as_str()).and_then(range_start);
                if begins != Some(from) {
                    return Err(Refusal::Range(from));
                }
                0
            }
            _ => from,
        };
        let left = blob.size - from;
        if let Some(got) = header(&response, CONTENT_LENGTH.as_str()).and_then(|n| n.parse().ok())
            && got != left + skip
        {
            return Err(Refusal::Length { want: left + skip, got });
        }
        Ok(Arriving { response, skip, left })
    }

    // === how ===

    async fn send(&self, ask: &Ask) -> Result<Response, Refusal> {
        let client = self.client.as_ref().map_err(Refusal::clone)?;
        let used = self.grant.lock().await.clone();
        let used = used.filter(|grant| grant.until.is_none_or(|until| until > Instant::now()));
        let response = self.follow(client, ask, used.as_ref()).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return self.check(response).await;
        }
        let challenges = response.headers().get_all(WWW_AUTHENTICATE).iter();
        let challenge = Challenge::strongest(challenges.filter_map(|value| value.to_str().ok()));
        let Some(challenge) = challenge else { return Err(self.unauthorized(response).await) };
        let grant = self.obtain(client, &challenge, used.as_ref()).await?;
        let response = self.follow(client, ask, Some(&grant)).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            return Err(self.unauthorized(response).await);
        }
        self.check(response).await
    }

    /// A grant other than the one that was just refused.
    async fn obtain(
        &self,
        client: &Client,
        challenge: &Challenge,
        refused: Option<&Grant>,
    ) -> Result<Grant, Refusal> {
        let mut current = self.grant.lock().await;
        if let Some(newer) = current.as_ref().filter(|grant| Some(*grant) != refused) {
            return Ok(newer.clone());
        }
        let own_scope = format!("repository:{}:pull", self.repository);
        let fresh = match challenge.answer(&self.credentials, &self.host.base, &own_scope)? {
            Answer::Known(grant) => grant,
            Answer::Ask(request) => self.token(client, request).await?,
        };
        *current = Some(fresh.clone());
        Ok(fresh)
    }

    async fn token(&self, client: &Client, request: TokenRequest) -> Result<Grant, Refusal> {
        let (url, built) = match request {
            TokenRequest::Get { url, basic } => {
                let request = client.get(url.clone());
                let request = match basic {
                    Some(basic) => request.header(AUTHORIZATION, basic),
                    None => request,
                };
                (url, request)
            }
            TokenRequest::Post { url, form } => {
                let request = client.post(url.clone()).body(form);
                (url, request.header(CONTENT_TYPE, "application/x-www-form-urlencoded"))
            }
        };
        let sent = async {
            let response = self.within(&url, self.patience.answer, built.send()).await?;
            if response.status() == StatusCode::UNAUTHORIZED {
                return Err(self.unauthorized(response).await);
            }
            let response = self.check(response).await?;
            grant(&self.body(response, TOKEN_LIMIT).await?, Instant::now())
        };
        let realm = || url.as_str().split('?').next().unwrap_or_default().to_owned();
        sent.await.map_err(|source| match source {
            // Wrong credentials are the caller's business, not the token service's.
            Refusal::Unauthorized { .. } | Refusal::NoToken => source,
            source => Refusal::Token { realm: realm(), source: Box::new(source) },
        })
    }

    /// Sends, and goes where the answer points. Our headers and secrets stay at home.
    async fn follow(
        &self,
        client: &Client,
        ask: &Ask,
        grant: Option<&Grant>,
    ) -> Result<Response, Refusal> {
        let mut url = self.url(&ask.path)?;
        for _ in 0..=REDIRECTS {
            let mut headers = ask.headers.clone();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            if url.origin() == self.host.base.origin() {
                self.own_headers(&mut headers, grant)?;
            }
            let request = client.request(ask.method.clone(), url.clone()).headers(headers);
            let response = self.within(&url, ask.patience, request.send()).await?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let to = header(&response, LOCATION.as_str())
                .ok_or_else(|| Refusal::Redirect("to nowhere".to_owned()))?;
            let next = url.join(to).map_err(|e| Refusal::Redirect(format!("to {to:?}: {e}")))?;
            if !ask.by_digest && url.scheme() == "https" && next.scheme() != "https" {
                return Err(Refusal::Redirect("a tag to plain http".to_owned()));
            }
            url = next;
        }
        Err(Refusal::Redirect("in circles".to_owned()))
    }

    fn url(&self, path: &str) -> Result<Url, Refusal> {
        let mut url = self.host.base.clone();
        url.set_path(&format!("{}{path}", self.host.api));
        if let Some(registry) = &self.host.stands_for {
            url.query_pairs_mut().append_pair("ns", registry);
        }
        Ok(url)
    }

    fn own_headers(&self, headers: &mut HeaderMap, grant: Option<&Grant>) -> Result<(), Refusal> {
        if let Some(grant) = grant {
            let mut value = HeaderValue::try_from(&grant.header)
                .map_err(|_| Refusal::Protocol("gave a token that is no header".to_owned()))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        for (name, value) in &self.host.headers {
            let bad = || Refusal::Config(format!("header {name:?} cannot be sent"));
            let value = HeaderValue::try_from(value).map_err(|_| bad())?;
            headers.append(HeaderName::try_from(name).map_err(|_| bad())?, value);
        }
        Ok(())
    }

    async fn within(
        &self,
        url: &Url,
        patience: Duration,
        sending: impl Future<Output = reqwest::Result<Response>>,
    ) -> Result<Response, Refusal> {
        let proxy = self.proxies.choose(url).map_err(|e| Refusal::Config(e.to_string()))?;
        let limit = self.host.dial_timeout.unwrap_or(self.patience.dial) + patience;
        let sent = match timeout(limit, sending).await {
            Err(_) => Err(Refusal::Silent(limit)),
            Ok(sent) => sent.map_err(refusal),
        };
        sent.map_err(|source| match (proxy, source) {
            // Who did not take the connection is the proxy, or one behind it.
            (Some(proxy), source @ Refusal::Connect(_)) => {
                Refusal::Proxy { proxy: proxy::name(proxy), source: Box::new(source) }
            }
            (_, source) => source,
        })
    }

    async fn check(&self, response: Response) -> Result<Response, Refusal> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry_after = header(&response, RETRY_AFTER.as_str()).and_then(|n| n.parse().ok());
        let retry_after = retry_after.map(Duration::from_secs).map(|d| d.min(RETRY_AFTER_LIMIT));
        let message = self.message(response).await;
        Err(Refusal::Status { status: status.as_u16(), message, retry_after })
    }

    async fn unauthorized(&self, response: Response) -> Refusal {
        Refusal::Unauthorized { message: self.message(response).await }
    }

    /// What the registry says in its own words; nothing if that cannot be read.
    async fn message(&self, response: Response) -> String {
        let Ok(body) = self.body(response, MESSAGE_LIMIT).await else { return String::new() };
        error_message(&body)
    }

    async fn body(&self, mut response: Response, limit: u64) -> Result<Bytes, Refusal> {
        let announced = response.content_length();
        if announced.is_some_and(|length| length > limit) {
            return Err(Refusal::TooLarge { limit });
        }
        let mut body = bytes::BytesMut::new();
        while let Some(piece) = next_piece(&mut response, self.patience.progress).await? {
            if (body.len() + piece.len()) as u64 > limit {
                return Err(Refusal::TooLarge { limit });
            }
            body.extend_from_slice(&piece);
        }
        Ok(body.freeze())
    }
}

impl Arriving {
    /// The next wanted bytes; `None` once all have come.
    ///
    /// Cancel safe: a piece is given or still to come.
    pub(super) async fn next(&mut self, patience: Duration) -> Result<Option<Bytes>, Refusal> {
        loop {
            let Some(mut piece) = next_piece(&mut self.response, patience).await? else {
                return match self.left {
                    0 => Ok(None),
                    missing => Err(Refusal::Truncated { missing }),
                };
            };
            let skipped = self.skip.min(piece.len() as u64);
            self.skip -= skipped;
            let _ = piece.split_to(usize::try_from(skipped).unwrap_or(piece.len()));
            if piece.is_empty() {
                continue;
            }
            let left = self.left.checked_sub(piece.len() as u64);
            self.left = left.ok_or(Refusal::Length { want: self.left, got: piece.len() as u64 })?;
            return Ok(Some(piece));
        }
    }
}

async fn next_piece(response: &mut Response, patience: Duration) -> Result<Option<Bytes>, Refusal> {
    match timeout(patience, response.chunk()).await {
        Err(_) => Err(Refusal::Stalled(patience)),
        Ok(piece) => piece.map_err(refusal),
    }
}

/// The URL is left out of what the library says: redirects carry secrets in theirs.
fn refusal(error: reqwest::Error) -> Refusal {
    let connecting = error.is_connect();
    let cause = std::sync::Arc::new(error.without_url());
    if connecting { Refusal::Connect(cause) } else { Refusal::Broken(cause) }
}

fn header<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

fn content_digest(response: &Response) -> Option<Digest> {
    header(response, "docker-content-digest")?.parse().ok()
}

/// Of `bytes 5-9/10`.
fn range_start(range: &str) -> Option<u64> {
    range.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

fn error_message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Errors {
        errors: Vec<One>,
    }
    #[derive(Deserialize)]
    struct One {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let Ok(Errors { errors }) = serde_json::from_slice(body) else { return String::new() };
    let text = |One { code, message }: One| if message.is_empty() { code } else { message };
    let texts: Vec<String> = errors.into_iter().map(text).filter(|text| !text.is_empty()).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        let check = |text: &str, want| assert_eq!(range_start(text), want, "{text}");
        check("bytes 5-9/10", Some(5));
        check("bytes 0-9/*", Some(0));
        check("bytes */10", None);
        check("5-9/10", None);
    }

    #[test]
    fn a_registry_is_quoted() {
        let check = |body: &str, want: &str| assert_eq!(error_message(body.as_bytes()), want);
        check(r#"{"errors":[{"code":"DENIED","message":"no"},{"code":"X"}]}"#, "no, X");
        check("<html>gateway</html>", "");
        check(r#"{"errors":[]}"#, "");
    }
}
