//! TLS configurations, and what a connection's calls say of its client.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

#[pyclass(frozen, module = "ledgermq_native.front")]
pub struct TlsConfig {
    pub server: Arc<ServerConfig>,
}

#[pymethods]
impl TlsConfig {
    #[new]
    #[pyo3(signature = (certificate, key, *, client_ca=None, require_client=false))]
    fn new(
        certificate: &[u8],
        key: &[u8],
        client_ca: Option<&[u8]>,
        require_client: bool,
    ) -> PyResult<Self> {
        let server = server_config(certificate, key, client_ca, require_client)
            .map_err(PyValueError::new_err)?;
        Ok(TlsConfig {
            server: Arc::new(server),
        })
    }
}

fn server_config(
    certificate: &[u8],
    key: &[u8],
    client_ca: Option<&[u8]>,
    require_client: bool,
) -> Result<ServerConfig, String> {
    let chain = certificates(certificate)
        .map_err(|why| format!("the certificate cannot be used: {why}"))?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|why| format!("the key cannot be used: {why}"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|why| why.to_string())?;
    let builder = match client_ca {
        None if require_client => return Err("require_client needs client_ca".to_owned()),
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for root in
                certificates(pem).map_err(|why| format!("the client CA cannot be used: {why}"))?
            {
                roots
                    .add(root)
                    .map_err(|why| format!("the client CA cannot be used: {why}"))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = if require_client {
                verifier
            } else {
                verifier.allow_unauthenticated()
            };
            builder.with_client_cert_verifier(
                verifier
                    .build()
                    .map_err(|why| format!("the client CA cannot be used: {why}"))?,
            )
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|why| format!("the certificate or key cannot be used: {why}"))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|why| why.to_string())?;
    if found.is_empty() {
        return Err("it contains no certificate in PEM".to_owned());
    }
    Ok(found)
}

/// What gRPC calls the authentication context: keys and their values.
type Names = Vec<(&'static str, Vec<Vec<u8>>)>;

/// The client of a connection, as its calls show it to Python.
pub struct Peer {
    /// In gRPC's notation.
    pub name: String,
    /// For logs: "host:port".
    pub address: String,
    auth: Names,
    python: PyOnceLock<(Py<PyString>, Py<PyDict>)>,
}

impl Peer {
    pub fn tcp(address: SocketAddr) -> Self {
        let port = address.port();
        let (name, address) = match address.ip().to_canonical() {
            IpAddr::V4(ip) => (format!("ipv4:{ip}:{port}"), format!("{ip}:{port}")),
            IpAddr::V6(ip) => (format!("ipv6:%5B{ip}%5D:{port}"), format!("[{ip}]:{port}")),
        };
        Peer::named(name, address)
    }

    pub fn unix() -> Self {
        Peer::named("unix:".to_owned(), "unix:".to_owned())
    }

    pub fn is_unix(&self) -> bool {
        self.name == "unix:"
    }

    fn named(name: String, address: String) -> Self {
        Peer {
            name,
            address,
            auth: Vec::new(),
            python: PyOnceLock::new(),
        }
    }

    /// Take the names of the verified certificate of the client, if it showed one. Fails if that cannot be parsed.
    pub fn authenticated(mut self, connection: &ServerConnection) -> Result<Self, String> {
        self.auth
            .push(("transport_security_type", vec![b"ssl".to_vec()]));
        self.auth.push((
            "security_level",
            vec![b"TSI_PRIVACY_AND_INTEGRITY".to_vec()],
        ));
        if let Some(der) = connection.peer_certificates().and_then(<[_]>::first) {
            self.auth.extend(names(der)?);
        }
        Ok(self)
    }

    pub fn in_python(&self, py: Python<'_>) -> PyResult<(Py<PyString>, Py<PyDict>)> {
        let (name, auth) = self.python.get_or_try_init(py, || {
            let auth = PyDict::new(py);
            for (key, values) in &self.auth {
                auth.set_item(
                    key,
                    PyList::new(py, values.iter().map(|value| PyBytes::new(py, value)))?,
                )?;
            }
            PyResult::Ok((PyString::new(py, &self.name).unbind(), auth.unbind()))
        })?;
        Ok((name.clone_ref(py), auth.clone_ref(py)))
    }
}

fn names(der: &CertificateDer<'_>) -> Result<Names, String> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|why| why.to_string())?;
    let mut found = vec![("x509_pem_cert", vec![pem(der).into_bytes()])];
    let common: Vec<_> = certificate
        .subject()
        .iter_common_name()
        .map(|name| name.as_slice().to_vec())
        .collect();
    if !common.is_empty() {
        found.push(("x509_common_name", common));
    }
    found.push((
        "x509_subject",
        vec![certificate.subject().to_string().into_bytes()],
    ));
    let extension = certificate
        .subject_alternative_name()
        .map_err(|why| why.to_string())?;
    let alternative: Vec<_> = extension
        .iter()
        .flat_map(|extension| &extension.value.general_names)
        .filter_map(alternative_name)
        .collect();
    if !alternative.is_empty() {
        found.push(("x509_subject_alternative_name", alternative));
    }
    Ok(found)
}

/// The kinds of names that gRPC reports.
fn alternative_name(name: &GeneralName<'_>) -> Option<Vec<u8>> {
    match name {
        GeneralName::DNSName(text) | GeneralName::URI(text) | GeneralName::RFC822Name(text) => {
            Some(text.as_bytes().to_vec())
        }
        GeneralName::IPAddress(bytes) => {
            let ip = match bytes.len() {
                4 => IpAddr::from(<[u8; 4]>::try_from(*bytes).ok()?),
                16 => IpAddr::from(<[u8; 16]>::try_from(*bytes).ok()?),
                _ => return None,
            };
            Some(ip.to_string().into_bytes())
        }
        _ => None,
    }
}

fn pem(der: &[u8]) -> String {
    use base64::engine::general_purpose::STANDARD;
    use base64::Engine;
    let text = STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.extend(line.iter().map(|byte| char::from(*byte)));
        pem.push('\n');
    }
    pem + "-----END CERTIFICATE-----\n"
}
