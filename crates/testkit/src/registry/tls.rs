use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};
use tokio_rustls::TlsAcceptor;

/// An authority nobody else trusts.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

impl Authority {
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "testkit authority");
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    /// To be trusted, in PEM.
    pub fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// Certificate and key of a client, in PEM.
    pub fn client(&self) -> Result<(String, String)> {
        let mut params = CertificateParams::new(vec!["client".to_owned()])?;
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, &self.issuer)?.pem(), key.serialize_pem()))
    }

    /// Certificate and key of a server on this machine, in PEM.
    pub fn server(&self) -> Result<(String, String)> {
        let (certificate, key) = self.local()?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    fn local(&self) -> Result<(rcgen::Certificate, KeyPair)> {
        let names = ["localhost", "127.0.0.1", "registry.test"].map(str::to_owned);
        let mut params = CertificateParams::new(names.to_vec())?;
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, &self.issuer)?, key))
    }

    pub(super) fn acceptor(&self, wants_client: bool) -> Result<TlsAcceptor> {
        let (certificate, key) = self.local()?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match wants_client {
            false => builder.with_no_client_auth(),
            true => {
                let mut roots = RootCertStore::empty();
                roots.add(self.certificate.der().clone())?;
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build()?)
            }
        };
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = builder
            .with_single_cert(vec![certificate.der().clone()], key)
            .context("use the certificate just made")?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}
