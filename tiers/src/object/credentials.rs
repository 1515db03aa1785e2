//! Where credentials come from. They are in no configuration, and no text of an error or of the log holds them.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use terrace_config::{Credentials, ObjectConfig};

use crate::error::TierError;

/// A file of credentials is no larger.
const FILE_BYTES: u64 = 1 << 20;

/// What requests are signed with.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret {
    pub key_id: String,
    pub key: String,
    pub token: Option<String>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// These.
    Keys(Secret),
    /// None here: a web identity, the container or the instance gives them, as the environment says.
    Provider,
    /// None are wanted.
    Unsigned,
}

/// The environment of the process, or a test's.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Finds the credentials of a tier. Reads a file, perhaps.
pub(super) fn find(tier: &str, config: &ObjectConfig, environment: Environment<'_>) -> Result<Found, TierError> {
    let source = Source { tier, config, environment };
    match config.credentials {
        Credentials::None => Ok(Found::Unsigned),
        Credentials::Environment => match source.environment()? {
            Some(secret) => Ok(Found::Keys(secret)),
            None => Err(source.error("env_prefix", format!("{} is not set", source.variable("ACCESS_KEY_ID")))),
        },
        Credentials::File => match &config.credentials_file {
            Some(path) => source.file(path, "credentials_file").map(Found::Keys),
            None => {
                let problem = "credentials = \"file\" needs credentials_file".to_owned();
                Err(source.error("credentials_file", problem))
            }
        },
        Credentials::Chain => source.chain(),
    }
}

struct Source<'a> {
    tier: &'a str,
    config: &'a ObjectConfig,
    environment: Environment<'a>,
}

impl Source<'_> {
    fn error(&self, key: &'static str, problem: String) -> TierError {
        TierError::Object { tier: self.tier.to_owned(), key, problem, source: None }
    }

    fn variable(&self, name: &str) -> String {
        format!("{}{name}", self.config.env_prefix)
    }

    fn value(&self, name: &str) -> Option<String> {
        (self.environment)(&self.variable(name)).filter(|value| !value.is_empty())
    }

    fn environment(&self) -> Result<Option<Secret>, TierError> {
        match (self.value("ACCESS_KEY_ID"), self.value("SECRET_ACCESS_KEY")) {
            (Some(key_id), Some(key)) => Ok(Some(Secret { key_id, key, token: self.value("SESSION_TOKEN") })),
            (None, None) => Ok(None),
            (Some(_), None) => Err(self.half("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")),
            (None, Some(_)) => Err(self.half("SECRET_ACCESS_KEY", "ACCESS_KEY_ID")),
        }
    }

    fn half(&self, set: &str, missing: &str) -> TierError {
        let problem = format!("{} is set, {} is not", self.variable(set), self.variable(missing));
        self.error("env_prefix", problem)
    }

    fn chain(&self) -> Result<Found, TierError> {
        if let Some(secret) = self.environment()? {
            return Ok(Found::Keys(secret));
        }
        if let Some(path) = &self.config.credentials_file {
            return self.file(path, "credentials_file").map(Found::Keys);
        }
        // The usual file need not be there, nor have the profile, unless one was asked for by name.
        let home = (self.environment)("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        let usual = home.map(|home| home.join(".aws/credentials")).filter(|path| path.exists());
        match usual.map(|path| self.profile(&path, "credentials")).transpose()? {
            Some(Ok(secret)) => Ok(Found::Keys(secret)),
            Some(Err(problem)) if self.config.credentials_profile != "default" => {
                Err(self.error("credentials_profile", problem))
            }
            _ => Ok(Found::Provider),
        }
    }

    fn file(&self, path: &Path, key: &'static str) -> Result<Secret, TierError> {
        self.profile(path, key)?.map_err(|problem| self.error(key, problem))
    }

    /// The keys of the profile in a file; the inner error: the file does not have them.
    fn profile(&self, path: &Path, key: &'static str) -> Result<Result<Secret, String>, TierError> {
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| file.take(FILE_BYTES).read_to_end(&mut bytes));
        if let Err(source) = read {
            return Err(TierError::Object {
                tier: self.tier.to_owned(),
                key,
                problem: format!("{} cannot be read", path.display()),
                source: Some(Box::new(source)),
            });
        }
        let text = String::from_utf8_lossy(&bytes);
        let profile = &self.config.credentials_profile;
        Ok(parse(&text, profile).map_err(|problem| format!("{}: {problem}", path.display())))
    }
}

/// Reads the AWS shared format: sections `[profile]`, `name = value`, comments that begin a line with `#` or `;`. A name that comes again
/// replaces what was before. <https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html>
///
/// The error names the profile and the line, never what stands there.
fn parse(text: &str, profile: &str) -> Result<Secret, String> {
    let (mut key_id, mut key, mut token) = (None, None, None);
    let mut section: Option<&str> = None;
    let mut found = false;
    for (index, line) in text.lines().enumerate() {
        let indented = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let Some((name, _)) = rest.split_once(']') else {
                return Err(format!("line {}: a section that is not closed by ]", index + 1));
            };
            // The file of settings says `[profile name]`; some say so here.
            let name = name.trim();
            section = Some(name.strip_prefix("profile ").map_or(name, str::trim));
            found |= section == Some(profile);
            continue;
        }
        if section != Some(profile) {
            continue;
        }
        let Some((name, value)) = line.split_once('=') else {
            return Err(format!("profile {profile}: line {} is neither [section] nor name = value", index + 1));
        };
        if indented {
            // A setting below another, of which none is a credential.
            continue;
        }
        let value = Some(value.trim()).filter(|value| !value.is_empty()).map(str::to_owned);
        match name.trim().to_ascii_lowercase().as_str() {
            "aws_access_key_id" => key_id = value,
            "aws_secret_access_key" => key = value,
            "aws_session_token" => token = value,
            _ => {}
        }
    }
    match (found, key_id, key) {
        (_, Some(key_id), Some(key)) => Ok(Secret { key_id, key, token }),
        (false, ..) => Err(format!("there is no profile {profile}")),
        (true, None, _) => Err(format!("profile {profile} has no aws_access_key_id")),
        (true, _, None) => Err(format!("profile {profile} has no aws_secret_access_key")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::requests::testing::test_config;

    const FILE: &str = "# of two\n[default]\naws_access_key_id = AKIADEFAULT\naws_secret_access_key=s3cr=et/+\n\n\
        [ other ]\nregion = eu-west-1\nAWS_ACCESS_KEY_ID = AKIAOTHER\n  nested = x\naws_secret_access_key = hidden\n\
        aws_session_token = tok\n[empty]\n[half]\naws_access_key_id = AKIAHALF\n[odd]\nwhat is this\n";

    fn secret(key_id: &str, key: &str, token: Option<&str>) -> Secret {
        Secret { key_id: key_id.to_owned(), key: key.to_owned(), token: token.map(str::to_owned) }
    }

    #[test]
    fn profiles_are_read() {
        assert_eq!(parse(FILE, "default"), Ok(secret("AKIADEFAULT", "s3cr=et/+", None)));
        assert_eq!(parse(FILE, "other"), Ok(secret("AKIAOTHER", "hidden", Some("tok"))));
        assert_eq!(parse(FILE, "none"), Err("there is no profile none".to_owned()));
        assert_eq!(parse(FILE, "empty"), Err("profile empty has no aws_access_key_id".to_owned()));
        assert_eq!(parse(FILE, "half"), Err("profile half has no aws_secret_access_key".to_owned()));
        assert_eq!(parse(FILE, "odd"), Err("profile odd: line 16 is neither [section] nor name = value".to_owned()));
        assert_eq!(parse("[a\n", "a"), Err("line 1: a section that is not closed by ]".to_owned()));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "[\\[\\]a-z=# ;\n\r\t]{0,200}") {
            let _ = parse(&text, "a");
        }
    }

    #[test]
    fn the_chain_goes_from_the_environment_to_files_to_providers() {
        let dir = tempfile::tempdir().expect("a directory");
        let own = dir.path().join("own");
        std::fs::write(&own, FILE).expect("written");
        std::fs::create_dir(dir.path().join(".aws")).expect("made");
        std::fs::write(dir.path().join(".aws/credentials"), FILE).expect("written");
        let home = dir.path().to_string_lossy().into_owned();
        let with_home = |name: &str| (name == "HOME").then(|| home.clone());
        let with_keys = |name: &str| match name {
            "HOME" => Some(home.clone()),
            "X_ACCESS_KEY_ID" => Some("AKIAENV".to_owned()),
            "X_SECRET_ACCESS_KEY" => Some("hidden".to_owned()),
            _ => None,
        };
        let nothing = |_: &str| None;
        let mut config = test_config();
        config.env_prefix = "X_".to_owned();
        config.credentials = Credentials::Chain;
        assert_eq!(find("t", &config, &with_keys).ok(), Some(Found::Keys(secret("AKIAENV", "hidden", None))));
        let default = Found::Keys(secret("AKIADEFAULT", "s3cr=et/+", None));
        assert_eq!(find("t", &config, &with_home).ok(), Some(default));
        assert_eq!(find("t", &config, &nothing).ok(), Some(Found::Provider));
        config.credentials_profile = "other".to_owned();
        config.credentials_file = Some(own.clone());
        let other = Found::Keys(secret("AKIAOTHER", "hidden", Some("tok")));
        assert_eq!(find("t", &config, &nothing).ok(), Some(other.clone()));
        config.credentials = Credentials::File;
        assert_eq!(find("t", &config, &with_keys).ok(), Some(other));
        config.credentials_profile = "gone".to_owned();
        let error = find("t", &config, &with_keys).expect_err("no such profile").to_string();
        assert_eq!(error, format!("tier t: credentials_file: {}: there is no profile gone", own.display()));
        config.credentials_file = Some(dir.path().join("not there"));
        let error = find("t", &config, &with_keys).expect_err("no such file").to_string();
        assert!(error.contains("not there cannot be read"), "{error}");
        config.credentials = Credentials::Environment;
        let error = find("t", &config, &nothing).expect_err("not set").to_string();
        assert_eq!(error, "tier t: env_prefix: X_ACCESS_KEY_ID is not set");
        let half = |name: &str| (name == "X_SECRET_ACCESS_KEY").then(|| "hidden".to_owned());
        let error = find("t", &config, &half).expect_err("half").to_string();
        assert_eq!(error, "tier t: env_prefix: X_SECRET_ACCESS_KEY is set, X_ACCESS_KEY_ID is not");
    }
}
