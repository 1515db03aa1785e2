//! From the configuration to a store. No request is sent.

use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{Certificate, ClientOptions, ObjectStore, RetryConfig};
use terrace_config::{ObjectConfig, ObjectLocation};

use super::credentials::{self, Environment, Found};
use super::requests::WatchedConnector;
use crate::error::TierError;

const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Servers close connections that are idle; rather be the first to do so.
const IDLE_TIME: Duration = Duration::from_secs(20);

/// What `object_store` reads from the environment for credentials that somebody else keeps. Their names are AWS's own.
const PROVIDERS: [(&str, AmazonS3ConfigKey); 7] = [
    ("AWS_WEB_IDENTITY_TOKEN_FILE", AmazonS3ConfigKey::WebIdentityTokenFile),
    ("AWS_ROLE_ARN", AmazonS3ConfigKey::RoleArn),
    ("AWS_ROLE_SESSION_NAME", AmazonS3ConfigKey::RoleSessionName),
    ("AWS_ENDPOINT_URL_STS", AmazonS3ConfigKey::StsEndpoint),
    ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", AmazonS3ConfigKey::ContainerCredentialsRelativeUri),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", AmazonS3ConfigKey::ContainerCredentialsFullUri),
    ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", AmazonS3ConfigKey::ContainerAuthorizationTokenFile),
];

/// The store that the configuration names, and the path below which everything of Terrace is. Reads the files of the configuration
/// and the environment; makes the directory of a `file://` store. Nothing that it returns shows a secret.
///
/// # Errors
/// [`TierError::Object`] with the key of the configuration.
#[allow(clippy::disallowed_methods, reason = "where credentials come from; tests give a table")]
pub(crate) fn open_store(tier: &str, config: &ObjectConfig) -> Result<(Arc<dyn ObjectStore>, Path), TierError> {
    open_with(tier, config, &|name| std::env::var(name).ok())
}

fn open_with(
    tier: &str,
    config: &ObjectConfig,
    environment: Environment<'_>,
) -> Result<(Arc<dyn ObjectStore>, Path), TierError> {
    let opening = Opening { tier, config, environment };
    match config.location().map_err(|problem| opening.error("url", problem, None))? {
        ObjectLocation::Directory(directory) => Ok((opening.directory(&directory)?, Path::default())),
        ObjectLocation::Bucket { bucket, prefix } => {
            let prefix = Path::parse(&prefix)
                .map_err(|source| opening.error("url", "its prefix is no path".to_owned(), Some(source.into())))?;
            Ok((opening.bucket(&bucket)?, prefix))
        }
    }
}

struct Opening<'a> {
    tier: &'a str,
    config: &'a ObjectConfig,
    environment: Environment<'a>,
}

impl Opening<'_> {
    fn error(
        &self,
        key: &'static str,
        problem: String,
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    ) -> TierError {
        TierError::Object { tier: self.tier.to_owned(), key, problem, source }
    }

    fn directory(&self, directory: &FilePath) -> Result<Arc<dyn ObjectStore>, TierError> {
        let problem = |what: &str| format!("{} cannot be {what}", directory.display());
        std::fs::create_dir_all(directory).map_err(|error| self.error("url", problem("made"), Some(error.into())))?;
        let store = LocalFileSystem::new_with_prefix(directory)
            .map_err(|error| self.error("url", problem("used"), Some(error.into())))?;
        Ok(Arc::new(store))
    }

    fn bucket(&self, bucket: &str) -> Result<Arc<dyn ObjectStore>, TierError> {
        install_tls();
        let config = self.config;
        let found = credentials::find(self.tier, config, self.environment)?;
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_region(&config.region)
            .with_virtual_hosted_style_request(!config.path_style)
            .with_unsigned_payload(!config.sign_payload)
            // Repeating is the request layer's: it knows deadlines and budgets.
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .with_http_connector(WatchedConnector::default())
            .with_client_options(self.client(&found)?);
        if let Some(endpoint) = &config.endpoint {
            builder = builder.with_endpoint(self.endpoint(endpoint, bucket)?);
        }
        builder = match found {
            Found::Keys(secret) => {
                let builder = builder.with_access_key_id(secret.key_id).with_secret_access_key(secret.key);
                match secret.token {
                    Some(token) => builder.with_token(token),
                    None => builder,
                }
            }
            Found::Unsigned => builder.with_skip_signature(true),
            Found::Provider => self.providers().fold(builder, |builder, (key, value)| builder.with_config(key, value)),
        };
        let store = builder.build();
        store.map(|store| Arc::new(store) as Arc<dyn ObjectStore>).map_err(|error| {
            let key = if config.endpoint.is_some() { "endpoint" } else { "url" };
            self.error(key, "no client can be made for this store".to_owned(), Some(error.into()))
        })
    }

    fn providers(&self) -> impl Iterator<Item = (AmazonS3ConfigKey, String)> {
        PROVIDERS
            .into_iter()
            .filter_map(|(name, key)| Some((key, (self.environment)(name).filter(|value| !value.is_empty())?)))
    }

    fn client(&self, found: &Found) -> Result<ClientOptions, TierError> {
        let plain = self.config.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        let mut options = ClientOptions::new()
            // A deadline ends a request, and nothing else.
            .with_timeout_disabled()
            .with_connect_timeout(CONNECT_TIME)
            .with_pool_idle_timeout(IDLE_TIME)
            .with_pool_max_idle_per_host(self.config.connections as usize)
            .with_allow_http(plain);
        // Without TLS no certificate of the system is needed, and a client that loads none works where there are none.
        if plain && *found != Found::Provider {
            options = options.with_no_system_certificates(true);
        }
        let Some(path) = &self.config.ca_file else { return Ok(options) };
        let problem = |what: &str| format!("{} {what}", path.display());
        let pem = std::fs::read(path)
            .map_err(|error| self.error("ca_file", problem("cannot be read"), Some(error.into())))?;
        let certificates = Certificate::from_pem_bundle(&pem)
            .map_err(|error| self.error("ca_file", problem("holds no certificates in PEM"), Some(error.into())))?;
        if certificates.is_empty() {
            return Err(self.error("ca_file", problem("holds no certificates in PEM"), None));
        }
        Ok(certificates.into_iter().fold(options, ClientOptions::with_root_certificate))
    }

    /// The endpoint as the client wants it: without `path_style` the bucket stands in front of the host.
    fn endpoint(&self, endpoint: &str, bucket: &str) -> Result<String, TierError> {
        let endpoint = endpoint.trim_end_matches('/');
        let Some((scheme, host)) =
            endpoint.split_once("://").filter(|(_, host)| !host.is_empty() && !host.contains('@'))
        else {
            // Not shown: what stands before an @ may be a password.
            return Err(self.error("endpoint", "write https://host:port".to_owned(), None));
        };
        if self.config.path_style { Ok(endpoint.to_owned()) } else { Ok(format!("{scheme}://{bucket}.{host}")) }
    }
}

/// The HTTP client is built without cryptography of its own and panics if the process has none. An earlier choice is kept.
fn install_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::requests::testing::test_config;
    use terrace_config::Credentials;

    fn bucket_config() -> ObjectConfig {
        let mut config = test_config();
        config.url = "s3://bucket/some/prefix".to_owned();
        config.endpoint = Some("http://127.0.0.1:9".to_owned());
        config.credentials = Credentials::Environment;
        config
    }

    fn keys(name: &str) -> Option<String> {
        match name {
            "AWS_ACCESS_KEY_ID" => Some("AKIAVISIBLE".to_owned()),
            "AWS_SECRET_ACCESS_KEY" => Some("very-secret".to_owned()),
            "AWS_SESSION_TOKEN" => Some("also-secret".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn nothing_shows_a_secret() {
        for endpoint in [Some("http://127.0.0.1:9"), Some("https://storage.example"), None] {
            let mut config = bucket_config();
            config.endpoint = endpoint.map(str::to_owned);
            let (store, prefix) = open_with("t", &config, &keys).expect("a client");
            assert_eq!(prefix.as_ref(), "some/prefix");
            let shown = format!("{store} {store:?} {store:#?}");
            assert!(!shown.contains("secret\""), "{shown}");
            assert!(!shown.contains("very-secret") && !shown.contains("also-secret"), "{shown}");
        }
        let found = credentials::find("t", &bucket_config(), &keys).expect("keys");
        assert!(!format!("{found:?} {found:#?}").contains("secret-"));
    }

    #[test]
    fn a_bucket_stands_in_the_path_or_before_the_host() {
        let mut config = bucket_config();
        let opening = |config: &ObjectConfig, endpoint: &str| {
            Opening { tier: "t", config, environment: &keys }.endpoint(endpoint, "bucket")
        };
        assert_eq!(opening(&config, "http://h:1/").ok().as_deref(), Some("http://h:1"));
        config.path_style = false;
        assert_eq!(opening(&config, "https://h:1").ok().as_deref(), Some("https://bucket.h:1"));
        let error = opening(&config, "https://user:pass@h").expect_err("refused").to_string();
        assert!(!error.contains("pass"), "{error}");
    }

    #[test]
    fn certificates_are_read_or_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = bucket_config();
        config.ca_file = Some(dir.path().join("ca.pem"));
        let refused = |config: &ObjectConfig| open_with("t", config, &keys).expect_err("refused").to_string();
        assert!(refused(&config).contains("ca.pem cannot be read"));
        std::fs::write(dir.path().join("ca.pem"), "no certificate").expect("written");
        assert!(refused(&config).starts_with("tier t: ca_file: "), "{}", refused(&config));
    }

    #[test]
    fn a_directory_is_made() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = test_config();
        config.url = format!("file://{}/deep/down", dir.path().display());
        let (_, prefix) = open_with("t", &config, &keys).expect("a store");
        assert_eq!(prefix, Path::default());
        assert!(dir.path().join("deep/down").is_dir());
        std::fs::write(dir.path().join("file"), "").expect("written");
        config.url = format!("file://{}/file/below", dir.path().display());
        assert!(open_with("t", &config, &keys).is_err());
    }
}
