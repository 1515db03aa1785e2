//! Secrets have no key: what people write all the same is refused, told where it belongs, and not shown.

/// Names under which other programs take credentials, without `aws_` in front.
const NAMES: [&str; 11] = [
    "access_key",
    "access_key_id",
    "credential",
    "key",
    "passphrase",
    "password",
    "secret",
    "secret_access_key",
    "secret_key",
    "session_token",
    "token",
];

/// Where credentials belong.
pub(crate) const FIX: &str = "remove it: credentials come from the environment, a file or the provider chain: see the keys credentials, \
    env_prefix and credentials_file of a [[tier]] of type \"object\"";

/// Where the key of a tenant belongs.
pub(crate) const TENANT_FIX: &str =
    "remove it: a key stands in a file of its own, or is printed by a command: write key_files or key_commands";

/// What a fault shows instead of a secret.
pub(crate) const NOT_SHOWN: &str = "(not shown)";

/// Whether a key of this name would hold a secret.
pub(crate) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    NAMES.contains(&name.strip_prefix("aws_").unwrap_or(&name))
}

/// `text`, of which a fault is to be told, if it holds no secret: neither the value of a key for one, nor a URL with one.
pub(crate) fn masked(text: &str) -> &str {
    let key = text.split('=').next().unwrap_or("");
    let key = key.rsplit('.').next().unwrap_or("").trim().trim_matches(['"', '\'']);
    let in_url = text.split_once("://").is_some_and(|(_, rest)| rest.contains('@'));
    if in_url || is_secret(key) { NOT_SHOWN } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        for text in [
            "secret_access_key = abc",
            "  AWS_SECRET_ACCESS_KEY=abc",
            "tier.0.\"password\" = 3",
            "\"http://key:secret@host\"",
            "url = \"s3://key:secret@bucket",
        ] {
            assert_eq!(masked(text), "(not shown)", "{text}");
        }
        for text in ["tokens_per_block = 3", "\"s3://bucket/x\"", "allow_users = [\"a@b\"]"] {
            assert_eq!(masked(text), text);
        }
    }
}
