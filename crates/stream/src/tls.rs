//! A certificate and its key, from files.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio_rustls::TlsAcceptor;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("read a certificate from {}", .0.display())]
    Certificate(PathBuf, #[source] rustls::pki_types::pem::Error),

    #[error("no certificate is in {}", .0.display())]
    NoCertificate(PathBuf),

    #[error("read a private key from {}", .0.display())]
    Key(PathBuf, #[source] rustls::pki_types::pem::Error),

    #[error("the certificate and the key do not fit together")]
    Unfit(#[source] rustls::Error),
}

/// Reads PEM files: the certificate with those that signed it, and its key. Blocks.
pub fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let bad = |e| TlsError::Certificate(certificate.to_owned(), e);
    let chain = CertificateDer::pem_file_iter(certificate).map_err(bad)?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(bad)?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate(certificate.to_owned()));
    }
    let key = PrivateKeyDer::from_pem_file(key).map_err(|e| TlsError::Key(key.to_owned(), e))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Unfit)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(TlsError::Unfit)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_wrong_with_the_files_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = (dir.path().join("a.crt"), dir.path().join("a.key"));
        let error = |want: &str| {
            let error = acceptor(&certificate, &key).err().unwrap().to_string();
            assert!(error.starts_with(want), "{error}");
        };
        error("read a certificate from");
        fs::write(&certificate, "").unwrap();
        error("no certificate is in");
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(&certificate, made.cert.pem()).unwrap();
        error("read a private key from");
        let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(&key, other.signing_key.serialize_pem()).unwrap();
        error("the certificate and the key do not fit together");
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        acceptor(&certificate, &key).map(drop).unwrap();
    }
}
