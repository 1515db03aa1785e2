//! Where an object tier's objects are, out of its `url`.

use std::path::{Component, PathBuf};

use crate::object::ObjectConfig;
use crate::secrets;

/// Longest prefix: keys have at most 1024 bytes, and Terrace's own part needs some.
const PREFIX_BYTES: usize = 512;
/// What an `url` must be.
pub(crate) const URL_RULE: &str = "must be s3://BUCKET/PREFIX or file:///DIRECTORY";

/// The place that `url` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectLocation {
    /// A bucket of an S3-compatible store.
    Bucket {
        /// Its name: 3 to 63 lower-case letters, digits, `-` and `.`.
        bucket: String,
        /// What all keys start with: letters, digits, `.`, `_`, `-`, and `/` between names. No slash at either end; perhaps empty.
        prefix: String,
    },
    /// An absolute directory, without `..`.
    Directory(PathBuf),
}

impl ObjectConfig {
    /// The place that [`ObjectConfig::url`] names.
    ///
    /// # Errors
    /// What to write instead; never for a configuration that was validated.
    pub fn location(&self) -> Result<ObjectLocation, String> {
        if let Some(rest) = self.url.strip_prefix("s3://") {
            if rest.contains('@') {
                return Err(secrets::FIX.to_owned());
            }
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
            check_bucket(bucket)?;
            check_prefix(prefix)?;
            return Ok(ObjectLocation::Bucket { bucket: bucket.to_owned(), prefix: prefix.to_owned() });
        }
        if let Some(path) = self.url.strip_prefix("file://") {
            return directory(path).map(ObjectLocation::Directory);
        }
        Err("write \"s3://bucket/terrace\", for other servers than AWS with endpoint = \"https://host:port\""
            .to_owned())
    }
}

/// The rules that S3 and its kin have in common.
fn check_bucket(bucket: &str) -> Result<(), String> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends = bucket.bytes().next().is_some_and(plain) && bucket.bytes().next_back().is_some_and(plain);
    let inside = bucket.bytes().all(|b| plain(b) || b == b'-' || b == b'.') && !bucket.contains("..");
    let address = bucket.parse::<std::net::Ipv4Addr>().is_ok();
    if (3..=63).contains(&bucket.len()) && ends && inside && !address {
        return Ok(());
    }
    Err("name the bucket by 3 to 63 lower-case letters, digits, '-' or '.', the first and the last no sign".to_owned())
}

fn check_prefix(prefix: &str) -> Result<(), String> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"._/-".contains(&b);
    if !prefix.bytes().all(legal) {
        return Err("use letters, digits, '.', '_', '-' and '/' in the prefix alone".to_owned());
    }
    if !prefix.is_empty() && prefix.split('/').any(|name| matches!(name, "" | "." | "..")) {
        return Err("remove doubled slashes, '.' and '..' from the prefix".to_owned());
    }
    if prefix.len() > PREFIX_BYTES {
        return Err(format!("shorten the prefix to {PREFIX_BYTES} bytes"));
    }
    Ok(())
}

fn directory(path: &str) -> Result<PathBuf, String> {
    if !path.starts_with('/') {
        return Err("write three slashes and an absolute directory: \"file:///mnt/shared/terrace\"".to_owned());
    }
    if path.contains('\0') || path.len() > 4095 {
        return Err("write a path of at most 4095 bytes without NUL".to_owned());
    }
    let directory: PathBuf = path.into();
    if directory.components().any(|part| part == Component::ParentDir) {
        return Err("remove '..'".to_owned());
    }
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(url: &str) -> Result<ObjectLocation, String> {
        ObjectConfig { url: url.to_owned(), ..ObjectConfig::blank() }.location()
    }

    #[test]
    fn urls_are_taken_apart() {
        for (url, bucket, prefix) in [
            ("s3://abc", "abc", ""),
            ("s3://abc/", "abc", ""),
            ("s3://a-b.c1/x", "a-b.c1", "x"),
            ("s3://abc/X/y_z-1.2/", "abc", "X/y_z-1.2"),
        ] {
            let want = ObjectLocation::Bucket { bucket: bucket.to_owned(), prefix: prefix.to_owned() };
            assert_eq!(location(url), Ok(want), "{url}");
        }
        assert_eq!(location("file:///a/b c"), Ok(ObjectLocation::Directory("/a/b c".into())));
    }

    #[test]
    fn what_could_mean_another_place_is_refused() {
        let long = format!("s3://{}", "a".repeat(64));
        let deep = format!("s3://abc/{}", "a/".repeat(300));
        for url in [
            "",
            "abc",
            "s3:/abc",
            "S3://abc",
            "gs://abc",
            "http://host/abc",
            "s3://",
            "s3://ab",
            "s3://Abc",
            "s3://a_c",
            "s3://-abc",
            "s3://abc.",
            "s3://a..c",
            "s3://10.0.0.1/x",
            "s3://key:secret@abc/x",
            "s3://abc//x",
            "s3://abc/x//",
            "s3://abc/x/../y",
            "s3://abc/./y",
            "s3://abc/..",
            "s3://abc/ x",
            "s3://abc/x?y",
            "s3://abc/é",
            "file://",
            "file://host/x",
            "file:///x/../y",
            "file:///x\0",
            &long,
            &deep,
        ] {
            assert!(location(url).is_err(), "{url}");
        }
    }
}
