//! What a registry wants to see before it answers, and how to get it.
//!
//! ```text
//!  us ── GET ──► registry ── 401, WWW-Authenticate: Bearer realm=…, scope=… ──► us
//!  us ── GET realm?scope=… (password), or POST (identity token) ──► token service ── token ──► us
//!  us ── GET, Authorization: Bearer token ──► registry
//! ```
//!
//! Secrets are sent only to who asked for them, and not in the clear to a token service of
//! a registry that itself speaks TLS. A mirror that asks gets the same as the registry: it
//! is in `hosts.toml` because the operator trusts it to stand for that one.

use std::{collections::BTreeSet, fmt, time::Duration};

use serde::Deserialize;
use tokio::time::Instant;
use url::{Url, form_urlencoded};

use super::{credentials::Credentials, error::Refusal};

/// Renew a token this long before it ends: clocks differ and requests take time.
const MARGIN: Duration = Duration::from_secs(10);
/// What the token specification says when the service does not.
const DEFAULT_LIFE: Duration = Duration::from_secs(60);
const CLIENT_ID: &str = "longshore";

/// What the registry asked for in its 401.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    Bearer { realm: String, service: Option<String>, scopes: BTreeSet<String> },
    Basic,
}

/// An `Authorization` header, and when to ask for another one.
#[derive(Clone, PartialEq)]
pub(super) struct Grant {
    pub(super) header: String,
    pub(super) until: Option<Instant>,
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Grant(until {:?})", self.until)
    }
}

/// How to ask the token service.
#[derive(PartialEq, Eq)]
pub(super) enum TokenRequest {
    Get { url: Url, basic: Option<String> },
    Post { url: Url, form: String },
}

impl Challenge {
    /// The strongest of what the headers offer; none if we understand none.
    pub(super) fn strongest<'a>(headers: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut basic = None;
        for header in headers {
            for challenge in http_auth::parse_challenges(header).into_iter().flatten() {
                if challenge.scheme.eq_ignore_ascii_case("basic") {
                    basic = Some(Self::Basic);
                } else if challenge.scheme.eq_ignore_ascii_case("bearer") {
                    let get = |name: &str| {
                        let found = challenge.params.iter();
                        let mut found = found.filter(|(key, _)| key.eq_ignore_ascii_case(name));
                        found.next().map(|(_, value)| value.to_unescaped())
                    };
                    let Some(realm) = get("realm") else { continue };
                    let scopes = get("scope").unwrap_or_default();
                    let scopes = scopes.split_ascii_whitespace().map(str::to_owned).collect();
                    return Some(Self::Bearer { realm, service: get("service"), scopes });
                }
            }
        }
        basic
    }

    /// What answers the challenge without asking anybody, or how to ask.
    pub(super) fn answer(
        &self,
        credentials: &Credentials,
        registry: &Url,
        own_scope: &str,
    ) -> Result<Answer, Refusal> {
        let (realm, service, scopes) = match self {
            Self::Basic => {
                let message = "wants a user name and a password".to_owned();
                let header = credentials.basic().ok_or(Refusal::Unauthorized { message })?;
                return Ok(Answer::Known(Grant { header, until: None }));
            }
            Self::Bearer { realm, service, scopes } => (realm, service, scopes),
        };
        if let Credentials::Bearer(token) = credentials {
            let header = format!("Bearer {token}");
            return Ok(Answer::Known(Grant { header, until: None }));
        }
        let url = Url::parse(realm)
            .map_err(|e| Refusal::Protocol(format!("names a bad token service {realm:?}: {e}")))?;
        if !credentials.is_anonymous() && registry.scheme() == "https" && url.scheme() != "https" {
            return Err(Refusal::ClearRealm { realm: realm.clone() });
        }
        let mut scopes = scopes.clone();
        if scopes.is_empty() {
            scopes.insert(own_scope.to_owned());
        }
        Ok(Answer::Ask(token_request(url, service.as_deref(), &scopes, credentials)))
    }
}

pub(super) enum Answer {
    Known(Grant),
    Ask(TokenRequest),
}

fn token_request(
    mut url: Url,
    service: Option<&str>,
    scopes: &BTreeSet<String>,
    credentials: &Credentials,
) -> TokenRequest {
    if let Credentials::Identity(token) = credentials {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "refresh_token");
        form.append_pair("client_id", CLIENT_ID);
        form.append_pair("refresh_token", token);
        form.append_pair("service", service.unwrap_or_default());
        let all: Vec<&str> = scopes.iter().map(String::as_str).collect();
        form.append_pair("scope", &all.join(" "));
        return TokenRequest::Post { url, form: form.finish() };
    }
    {
        let mut query = url.query_pairs_mut();
        if let Some(service) = service {
            query.append_pair("service", service);
        }
        for scope in scopes {
            query.append_pair("scope", scope);
        }
    }
    TokenRequest::Get { url, basic: credentials.basic() }
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
    expires_in: Option<u64>,
}

/// Reads what the token service sent.
pub(super) fn grant(answer: &[u8], now: Instant) -> Result<Grant, Refusal> {
    let answer: TokenAnswer = serde_json::from_slice(answer)
        .map_err(|e| Refusal::Protocol(format!("token service sent no token: {e}")))?;
    let present = |token: Option<String>| token.filter(|token| !token.is_empty());
    let token = present(answer.access_token).or(present(answer.token)).ok_or(Refusal::NoToken)?;
    // A service that says less than a minute is not believed: the specification's minimum.
    let life = answer.expires_in.map_or(DEFAULT_LIFE, Duration::from_secs).max(DEFAULT_LIFE);
    // A year is as good as for ever and cannot overflow the clock.
    let life = life.min(Duration::from_secs(365 * 86_400));
    Ok(Grant { header: format!("Bearer {token}"), until: Some(now + life - MARGIN) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bearer(realm: &str, service: Option<&str>, scopes: &[&str]) -> Challenge {
        Challenge::Bearer {
            realm: realm.to_owned(),
            service: service.map(str::to_owned),
            scopes: scopes.iter().map(|&scope| scope.to_owned()).collect(),
        }
    }

    #[test]
    fn the_strongest_challenge_counts() {
        let check = |headers: &[&str], want| {
            assert_eq!(Challenge::strongest(headers.iter().copied()), want, "{headers:?}");
        };
        let docker = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push repository:c:pull""#;
        let want = bearer(
            "https://auth.docker.io/token",
            Some("registry.docker.io"),
            &["repository:a/b:pull,push", "repository:c:pull"],
        );
        check(&[docker], Some(want));
        check(&[r#"Basic realm="x""#, r#"bearer realm="r""#], Some(bearer("r", None, &[])));
        check(&[r#"Basic realm="x", Bearer realm="r""#], Some(bearer("r", None, &[])));
        check(&[r#"Basic realm="x""#], Some(Challenge::Basic));
        check(&[r#"Digest realm="x", nonce="y""#], None);
        check(&["Bearer service=\"no realm\""], None);
        check(&[], None);
    }

    fn ask(challenge: &Challenge, credentials: &Credentials, registry: &str) -> String {
        let registry = Url::parse(registry).expect("a URL");
        match challenge.answer(credentials, &registry, "repository:own:pull") {
            Ok(Answer::Known(grant)) => grant.header,
            Ok(Answer::Ask(TokenRequest::Get { url, basic })) => {
                format!("GET {url} {}", basic.unwrap_or_default())
            }
            Ok(Answer::Ask(TokenRequest::Post { url, form })) => format!("POST {url} {form}"),
            Err(refusal) => refusal.to_string(),
        }
    }

    #[test]
    fn answers() {
        let password = Credentials::Password { username: "u".into(), password: "p".into() };
        let challenge = bearer("https://t.example/token?x=1", Some("s"), &["a", "b c"]);
        let r = "https://r.example";
        let check =
            |challenge: &Challenge, credentials: &Credentials, registry: &str, want: &str| {
                assert_eq!(ask(challenge, credentials, registry), want);
            };
        check(&Challenge::Basic, &password, r, "Basic dTpw");
        check(
            &Challenge::Basic,
            &Credentials::Anonymous,
            r,
            "unauthorized: wants a user name and a password",
        );
        check(&challenge, &Credentials::Bearer("tok".into()), r, "Bearer tok");
        check(
            &challenge,
            &password,
            r,
            "GET https://t.example/token?x=1&service=s&scope=a&scope=b+c Basic dTpw",
        );
        check(
            &challenge,
            &Credentials::Identity("id".into()),
            r,
            "POST https://t.example/token?x=1 grant_type=refresh_token&client_id=longshore&refresh_token=id&service=s&scope=a+b+c",
        );
        let bare = bearer("http://t.example/token", None, &[]);
        let own = "GET http://t.example/token?scope=repository%3Aown%3Apull ";
        check(&bare, &Credentials::Anonymous, r, own);
        check(
            &bare,
            &password,
            r,
            "asks to send the password to http://t.example/token in the clear",
        );
        check(&bare, &password, "http://r.example", &format!("{own}Basic dTpw"));
    }

    #[tokio::test(start_paused = true)]
    async fn grants_end_before_the_token_does() {
        let now = Instant::now();
        let check = |json: &str, want: Option<(&str, u64)>| {
            let got = grant(json.as_bytes(), now).ok();
            let got = got.map(|grant| (grant.header, grant.until.expect("ends") - now));
            assert_eq!(
                got,
                want.map(|(header, life)| (header.to_owned(), Duration::from_secs(life))),
                "{json}"
            );
        };
        check(r#"{"token":"t"}"#, Some(("Bearer t", 50)));
        check(r#"{"access_token":"a","token":"t","expires_in":300}"#, Some(("Bearer a", 290)));
        check(r#"{"token":"t","expires_in":1}"#, Some(("Bearer t", 50)));
        check(r#"{"token":"t","expires_in":18446744073709551615}"#, Some(("Bearer t", 31_535_990)));
        check(r#"{"token":""}"#, None);
        check("<html>", None);
    }

    proptest! {
        #[test]
        fn no_header_panics(header: String) {
            let _ = Challenge::strongest(std::iter::once(header.as_str()));
        }
    }
}
