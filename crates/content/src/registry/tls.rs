//! TLS as one server wants it: the system's roots, its own, and our certificate.

use std::{path::Path, sync::Arc};

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName, UnixTime,
        pem::{self, PemObject},
    },
    sign::CertifiedKey,
};

use super::{error::Refusal, hosts::TlsFiles};

/// The system's; unreadable ones are skipped, since one bad file must not end all pulls.
/// Reads files.
pub(super) fn system_roots() -> RootCertStore {
    let loaded = rustls_native_certs::load_native_certs();
    for error in &loaded.errors {
        tracing::warn!(%error, "a root certificate of the system cannot be used");
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(loaded.certs);
    roots
}

/// Reads files.
pub(super) fn client_config(
    system: &RootCertStore,
    files: &TlsFiles,
) -> Result<ClientConfig, Refusal> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| Refusal::Config(e.to_string()))?;
    let builder = if files.skip_verify {
        let anyone = Arc::new(Anyone(Arc::clone(&provider)));
        builder.dangerous().with_custom_certificate_verifier(anyone)
    } else {
        let mut roots = system.clone();
        for file in &files.ca {
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(|e| bad(file, &e.to_string()))?;
            }
        }
        builder.with_root_certificates(roots)
    };
    let mut config = match files.client.is_empty() {
        true => builder.with_no_client_auth(),
        false => builder.with_client_cert_resolver(Arc::new(OurCertificates::load(files)?)),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn bad(file: &Path, why: &str) -> Refusal {
    Refusal::Config(format!("{}: {why}", file.display()))
}

fn unreadable(file: &Path) -> impl Fn(pem::Error) -> Refusal {
    move |error| match error {
        pem::Error::Io(e) => Refusal::File { path: file.to_owned(), source: Arc::new(e) },
        other => bad(file, &other.to_string()),
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Refusal> {
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(file).and_then(|certificates| certificates.collect());
    let found = found.map_err(unreadable(file))?;
    if found.is_empty() {
        return Err(bad(file, "no certificate in it"));
    }
    Ok(found)
}

/// Offers the first pair whose key the server can check.
#[derive(Debug)]
struct OurCertificates(Vec<Arc<CertifiedKey>>);

impl OurCertificates {
    fn load(files: &TlsFiles) -> Result<Self, Refusal> {
        let pair = |(cert, key): &(_, Option<_>)| {
            let key_file: &std::path::PathBuf = key.as_ref().unwrap_or(cert);
            let chain = certificates(cert)?;
            let key = PrivateKeyDer::from_pem_file(key_file).map_err(unreadable(key_file))?;
            let pair = CertifiedKey::from_der(chain, key, &ring::default_provider());
            pair.map(Arc::new).map_err(|e| bad(cert, &e.to_string()))
        };
        files.client.iter().map(pair).collect::<Result<_, _>>().map(Self)
    }
}

impl rustls::client::ResolvesClientCert for OurCertificates {
    fn resolve(&self, _: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.iter().find(|pair| pair.key.choose_scheme(schemes).is_some()).cloned()
    }

    fn has_certs(&self) -> bool {
        !self.0.is_empty()
    }
}

/// `skip_verify`: encrypted, but to whom nobody knows. Digests still protect content that
/// is asked for by digest.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let schemes = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, schemes)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let schemes = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, schemes)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
