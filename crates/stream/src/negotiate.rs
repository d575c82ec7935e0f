//! What a client's request agrees to. Pure.

use http::{HeaderMap, StatusCode, header};

use crate::{command::Verdict, websocket::Codec};

pub(crate) const STREAM_PROTOCOL: &str = "x-stream-protocol-version";
pub(crate) const ACCEPTED_PROTOCOLS: &str = "x-accepted-stream-protocol-versions";

const SPDY_COMMANDS: &[&str] =
    &["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];
const SPDY_FORWARDS: &[&str] = &["portforward.k8s.io"];
const SOCKET_COMMANDS: &[&str] = &[
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
    NONE,
];
const SOCKET_FORWARDS: &[&str] = &[TUNNEL, "v4.channel.k8s.io", "v4.base64.channel.k8s.io"];
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
/// WebSocket clients need not name any.
const NONE: &str = "";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Exec and attach.
    Command,
    Forward,
}

/// How the streams will travel, under the name that goes into the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub(crate) protocol: &'static str,
    pub(crate) transport: Transport,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Spdy {
        resizes: bool,
        verdict: Verdict,
    },
    Socket {
        key: String,
        codec: Codec,
        half_close: bool,
        verdict: Verdict,
    },
    /// SPDY inside a WebSocket.
    Tunnel {
        key: String,
    },
}

/// An answer that is no upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) why: String,
    pub(crate) accepted: &'static [&'static str],
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self { status, why: why.into(), accepted: &[] }
    }
}

pub(crate) fn negotiate(kind: Kind, headers: &HeaderMap) -> Result<Agreed, Refusal> {
    let wanted = headers.get(header::UPGRADE).and_then(|value| value.to_str().ok());
    let is_upgrade = listed(headers, header::CONNECTION.as_str())
        .any(|word| word.eq_ignore_ascii_case("upgrade"));
    match wanted {
        Some(to) if is_upgrade && to.eq_ignore_ascii_case("websocket") => socket(kind, headers),
        Some(to) if is_upgrade && to.eq_ignore_ascii_case("SPDY/3.1") => spdy(kind, headers),
        _ => {
            let why = "unable to upgrade: SPDY/3.1 or websocket is required";
            Err(Refusal::new(StatusCode::BAD_REQUEST, why))
        }
    }
}

fn spdy(kind: Kind, headers: &HeaderMap) -> Result<Agreed, Refusal> {
    let known = match kind {
        Kind::Command => SPDY_COMMANDS,
        Kind::Forward => SPDY_FORWARDS,
    };
    let protocol = choose(headers, STREAM_PROTOCOL, known)?.ok_or_else(|| {
        let why = format!("unable to upgrade: header {STREAM_PROTOCOL} is missing");
        Refusal::new(StatusCode::BAD_REQUEST, why)
    })?;
    let transport = Transport::Spdy {
        resizes: matches!(protocol, "v4.channel.k8s.io" | "v3.channel.k8s.io"),
        verdict: verdict(protocol),
    };
    Ok(Agreed { protocol, transport })
}

fn socket(kind: Kind, headers: &HeaderMap) -> Result<Agreed, Refusal> {
    let key = headers.get(header::SEC_WEBSOCKET_KEY).and_then(|key| key.to_str().ok());
    let version = headers.get(header::SEC_WEBSOCKET_VERSION);
    let (Some(key), Some(b"13")) = (key, version.map(|v| v.as_bytes())) else {
        let why = "unable to upgrade: a WebSocket needs a key and version 13";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, why));
    };
    let key = key.to_owned();
    let known = match kind {
        Kind::Command => SOCKET_COMMANDS,
        Kind::Forward => SOCKET_FORWARDS,
    };
    let chosen = choose(headers, header::SEC_WEBSOCKET_PROTOCOL.as_str(), known)?;
    let protocol = chosen.or(known.contains(&NONE).then_some(NONE));
    let protocol = protocol.ok_or_else(|| unknown("nothing", known))?;
    let transport = match protocol {
        TUNNEL => Transport::Tunnel { key },
        _ => Transport::Socket {
            key,
            codec: if protocol.contains("base64") { Codec::Base64 } else { Codec::Raw },
            half_close: protocol.starts_with("v5"),
            verdict: verdict(protocol),
        },
    };
    Ok(Agreed { protocol, transport })
}

fn verdict(protocol: &str) -> Verdict {
    if protocol.starts_with("v4") || protocol.starts_with("v5") {
        Verdict::Status
    } else {
        Verdict::Text
    }
}

/// The first of the client's that we know; `None` if it names none.
fn choose(
    headers: &HeaderMap,
    name: &str,
    known: &'static [&'static str],
) -> Result<Option<&'static str>, Refusal> {
    let mut asked = listed(headers, name).filter(|word| !word.is_empty()).peekable();
    if asked.peek().is_none() {
        return Ok(None);
    }
    let chosen = asked.find_map(|word| known.iter().find(|k| **k == word).copied());
    chosen.map(Some).ok_or_else(|| {
        let all: Vec<_> = listed(headers, name).collect();
        unknown(&all.join(", "), known)
    })
}

fn unknown(asked: &str, known: &'static [&'static str]) -> Refusal {
    let why = format!(
        "unable to upgrade: unable to negotiate protocol: client supports {asked}, server \
         accepts {}",
        known.join(", ")
    );
    Refusal { status: StatusCode::FORBIDDEN, why, accepted: known }
}

/// The words of a header that may be there several times, each with several words.
fn listed<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    /// The agreed protocol, or the refusal.
    #[track_caller]
    fn check(kind: Kind, upgrade: &'static str, asked: &[&'static str], want: &str) {
        let name = if upgrade == "websocket" { "sec-websocket-protocol" } else { STREAM_PROTOCOL };
        let mut lines = vec![("connection", "keep-alive, Upgrade"), ("upgrade", upgrade)];
        lines.extend([("sec-websocket-key", "k"), ("sec-websocket-version", "13")]);
        lines.extend(asked.iter().map(|protocol| (name, *protocol)));
        let got = match negotiate(kind, &headers(&lines)) {
            Ok(Agreed { protocol, .. }) => protocol.to_owned(),
            Err(refusal) => refusal.status.as_u16().to_string(),
        };
        assert_eq!(got, want, "{kind:?} {upgrade} {asked:?}");
    }

    #[test]
    fn the_first_of_the_client_that_is_known() {
        use Kind::{Command, Forward};
        let old = ["v9.channel.k8s.io", "v3.channel.k8s.io, v4.channel.k8s.io"];
        check(Command, "SPDY/3.1", &old, "v3.channel.k8s.io");
        check(Command, "spdy/3.1", &["v4.channel.k8s.io"], "v4.channel.k8s.io");
        check(Command, "SPDY/3.1", &["v5.channel.k8s.io"], "403");
        check(Command, "SPDY/3.1", &[], "400");
        check(Forward, "SPDY/3.1", &["portforward.k8s.io"], "portforward.k8s.io");
        check(Forward, "SPDY/3.1", &["v4.channel.k8s.io"], "403");
        check(Command, "websocket", &["v5.channel.k8s.io"], "v5.channel.k8s.io");
        check(Command, "websocket", &["x, base64.channel.k8s.io"], "base64.channel.k8s.io");
        check(Command, "websocket", &[], "");
        check(Command, "websocket", &["x"], "403");
        check(Forward, "websocket", &[], "403");
        check(Forward, "websocket", &[TUNNEL], TUNNEL);
        check(Forward, "websocket", &["v4.base64.channel.k8s.io"], "v4.base64.channel.k8s.io");
        check(Command, "h2c", &["v4.channel.k8s.io"], "400");
    }

    #[test]
    fn what_is_no_upgrade_is_refused() {
        let plain = negotiate(Kind::Command, &headers(&[("upgrade", "SPDY/3.1")])).unwrap_err();
        assert_eq!(plain.status, StatusCode::BAD_REQUEST);
        let keyless = [("connection", "upgrade"), ("upgrade", "websocket")];
        let keyless = negotiate(Kind::Command, &headers(&keyless)).unwrap_err();
        assert_eq!(keyless.status, StatusCode::BAD_REQUEST);
    }

    #[test]
    fn a_refusal_says_what_would_do() {
        let lines = [("connection", "upgrade"), ("upgrade", "SPDY/3.1"), (STREAM_PROTOCOL, "x, y")];
        let refusal = negotiate(Kind::Forward, &headers(&lines)).unwrap_err();
        assert_eq!(refusal.accepted, SPDY_FORWARDS);
        assert!(refusal.why.ends_with("client supports x, y, server accepts portforward.k8s.io"));
    }
}
