//! Who we are to a registry, for one pull.

use std::fmt;

use base64::{Engine, prelude::BASE64_STANDARD};

/// As a client gives it, in any of the forms CRI and Docker know. Empty fields are absent.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct AuthConfig {
    pub username: String,
    pub password: String,
    /// Base64 of `username:password`.
    pub auth: String,
    /// The registry these are for; another one gets nothing.
    pub server_address: String,
    /// Exchanged for access tokens at the registry's token service.
    pub identity_token: String,
    /// Sent to the registry as it is.
    pub registry_token: String,
}

/// What is left of an [`AuthConfig`] once it is known to be for this registry.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub enum Credentials {
    #[default]
    Anonymous,
    Password {
        username: String,
        password: String,
    },
    Identity(String),
    Bearer(String),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthConfigError {
    #[error("field auth is not base64")]
    Base64,
    #[error("field auth is not of the form username:password")]
    Form,
}

impl AuthConfig {
    pub fn check(self, registry: &str) -> Result<Credentials, AuthConfigError> {
        if !self.server_address.is_empty() && server(&self.server_address) != alias(registry) {
            return Ok(Credentials::Anonymous);
        }
        if !self.registry_token.is_empty() {
            return Ok(Credentials::Bearer(self.registry_token));
        }
        if !self.identity_token.is_empty() {
            return Ok(Credentials::Identity(self.identity_token));
        }
        if !self.username.is_empty() {
            let Self { username, password, .. } = self;
            return Ok(Credentials::Password { username, password });
        }
        if self.auth.is_empty() {
            return Ok(Credentials::Anonymous);
        }
        let bytes =
            BASE64_STANDARD.decode(self.auth.trim()).map_err(|_| AuthConfigError::Base64)?;
        let text = String::from_utf8(bytes).map_err(|_| AuthConfigError::Form)?;
        // Old Docker clients pad with NUL.
        let text = text.trim_end_matches('\0');
        let (username, password) = text.split_once(':').ok_or(AuthConfigError::Form)?;
        Ok(Credentials::Password { username: username.to_owned(), password: password.to_owned() })
    }
}

/// `https://index.docker.io/v1/` is `docker.io`.
fn server(address: &str) -> &str {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    alias(rest.split('/').next().unwrap_or_default())
}

/// Docker Hub goes by several names.
fn alias(host: &str) -> &str {
    match host {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        other => other,
    }
}

impl Credentials {
    pub fn is_anonymous(&self) -> bool {
        *self == Self::Anonymous
    }

    pub(crate) fn basic(&self) -> Option<String> {
        match self {
            Self::Password { username, password } => {
                let encoded = BASE64_STANDARD.encode(format!("{username}:{password}"));
                Some(format!("Basic {encoded}"))
            }
            _ => None,
        }
    }
}

/// Secrets never show.
impl fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuthConfig(for {:?})", self.server_address)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anonymous => "Anonymous",
            Self::Password { .. } => "Password(…)",
            Self::Identity(_) => "Identity(…)",
            Self::Bearer(_) => "Bearer(…)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(auth: AuthConfig, registry: &str, want: &Result<Credentials, AuthConfigError>) {
        assert_eq!(auth.check(registry), *want);
    }

    fn password(username: &str, password: &str) -> Credentials {
        Credentials::Password { username: username.to_owned(), password: password.to_owned() }
    }

    #[test]
    fn every_form_is_understood() {
        let none = AuthConfig::default;
        check(none(), "r", &Ok(Credentials::Anonymous));
        let plain = AuthConfig { username: "u".into(), password: "p".into(), ..none() };
        check(plain, "r", &Ok(password("u", "p")));
        let auth = |text: &str| AuthConfig { auth: BASE64_STANDARD.encode(text), ..none() };
        check(auth("u:p:q\0\0"), "r", &Ok(password("u", "p:q")));
        check(auth("nothing"), "r", &Err(AuthConfigError::Form));
        check(AuthConfig { auth: "%".into(), ..none() }, "r", &Err(AuthConfigError::Base64));
        let identity = AuthConfig { identity_token: "t".into(), ..none() };
        check(identity, "r", &Ok(Credentials::Identity("t".into())));
        let bearer = AuthConfig { registry_token: "t".into(), ..none() };
        check(bearer, "r", &Ok(Credentials::Bearer("t".into())));
    }

    #[test]
    fn another_registry_gets_nothing() {
        let auth = |server: &str| AuthConfig {
            username: "u".into(),
            server_address: server.into(),
            ..AuthConfig::default()
        };
        for server in ["https://r.example:5000/v2/", "r.example:5000", "http://r.example:5000"] {
            check(auth(server), "r.example:5000", &Ok(password("u", "")));
            check(auth(server), "r.example", &Ok(Credentials::Anonymous));
        }
        check(auth("https://index.docker.io/v1/"), "docker.io", &Ok(password("u", "")));
    }

    #[test]
    fn secrets_do_not_show() {
        let auth =
            AuthConfig { username: "u".into(), password: "secret".into(), ..AuthConfig::default() };
        assert!(!format!("{auth:?} {:?}", auth.clone().check("r")).contains("secret"));
    }
}
