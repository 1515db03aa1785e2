//! Which bucket, and what of it.

use std::path::PathBuf;

use anyhow::{Context, Result};
use terrace_config::{Config, ObjectConfig, TierKind};
use terrace_tiers::object::admin::Admin;

use crate::failure::BadInput;

/// Options of all commands.
#[derive(Clone, Debug, clap::Args)]
pub struct Place {
    /// The configuration file that names the bucket
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The object tier, where the file has several
    #[arg(long, value_name = "NAME")]
    tier: Option<String>,
    /// One namespace: its digest in hexadecimal, or the first digits of it. Without: all
    #[arg(long, value_name = "HEX")]
    pub namespace: Option<String>,
    /// One JSON object on stdout
    #[arg(long)]
    pub json: bool,
}

impl Place {
    /// Name and configuration of the tier, with what one namespace has of its capacity.
    pub fn tier(&self) -> Result<(String, ObjectConfig)> {
        let config = Config::load(&self.config)?;
        let file = self.config.display();
        let found = config.tiers.iter().filter_map(|tier| match &tier.kind {
            TierKind::Object(object) => Some((tier.name.as_str(), object)),
            TierKind::Nvme(_) | TierKind::Memory(_) => None,
        });
        let found: Vec<(&str, &ObjectConfig)> = found.collect();
        let names = found.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let (name, object) = match (&self.tier, found.as_slice()) {
            (_, []) => return Err(BadInput::new(format!("{file} has no [[tier]] of type \"object\"")).into()),
            (None, [only]) => *only,
            (None, _) => {
                return Err(BadInput::new(format!("{file} has several object tiers: --tier one of {names}")).into());
            }
            (Some(wanted), _) => *found
                .iter()
                .find(|(name, _)| name == wanted)
                .ok_or_else(|| BadInput::new(format!("--tier {wanted}: the object tiers of {file} are: {names}")))?,
        };
        Ok((name.to_owned(), object.for_one_of(config.server.pools)))
    }

    /// The namespaces that are asked for, those in the bucket. Sends requests.
    pub fn namespaces(&self, admin: &Admin) -> Result<Vec<[u8; 32]>> {
        let all = admin.namespaces().context("the namespaces cannot be listed")?;
        match &self.namespace {
            None => Ok(all),
            Some(start) => Ok(vec![one(&all, start)?]),
        }
    }
}

/// The only namespace whose digest starts with these digits.
fn one(all: &[[u8; 32]], start: &str) -> Result<[u8; 32], BadInput> {
    let wanted = start.to_ascii_lowercase();
    let mut found = all.iter().filter(|namespace| !wanted.is_empty() && digits(namespace).starts_with(&wanted));
    match (found.next(), found.next()) {
        (Some(namespace), None) => Ok(*namespace),
        (Some(_), Some(_)) => Err(BadInput::new(format!("--namespace {start}: several start so; write more digits"))),
        (None, _) => Err(BadInput::new(format!("--namespace {start}: none of the bucket's {} starts so", all.len()))),
    }
}

/// A digest in hexadecimal.
pub fn digits(namespace: &[u8; 32]) -> String {
    namespace.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str, tier: Option<&str>) -> Result<(String, ObjectConfig)> {
        let file = tempfile::NamedTempFile::new().expect("a file for the test");
        std::fs::write(file.path(), text).expect("written");
        let config = file.path().to_owned();
        Place { config, tier: tier.map(str::to_owned), namespace: None, json: false }.tier()
    }

    #[test]
    fn the_tier_is_the_only_one_or_the_one_named() {
        let tier = |name: &str| {
            format!("[[tier]]\ntype = \"object\"\nname = \"{name}\"\ncapacity = \"8GiB\"\nurl = \"s3://abc/{name}\"\n")
        };
        let head = "[primary]\nblocks = 9\n[server]\npools = 4\n";
        let (name, object) = place(&format!("{head}{}", tier("a")), None).expect("the only one");
        assert_eq!((name.as_str(), object.url.as_str(), object.capacity_bytes), ("a", "s3://abc/a", 2 << 30));
        let two = format!("{head}{}{}", tier("a"), tier("b"));
        assert_eq!(place(&two, Some("b")).expect("named").1.url, "s3://abc/b");
        for (text, named, part) in [
            (head, None, "has no [[tier]] of type \"object\""),
            (two.as_str(), None, "--tier one of a, b"),
            (two.as_str(), Some("c"), "--tier c: the object tiers"),
        ] {
            let error = place(text, named).expect_err(part);
            assert!(error.is::<BadInput>() && error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn namespaces_by_their_first_digits() {
        let [mut a, mut b] = [[0xab; 32], [0xab; 32]];
        (a[1], b[1]) = (0x10, 0x1f);
        let all = [a, b];
        let found = |start: &str| one(&all, start).map_err(|error| error.to_string());
        assert_eq!(found("ab10"), Ok(a));
        assert_eq!(found("AB1F"), Ok(b));
        assert_eq!(found(&digits(&b)), Ok(b));
        for (start, part) in [("ab1", "write more digits"), ("", "starts so"), ("cd", "none of the bucket's 2")] {
            assert!(found(start).is_err_and(|error| error.contains(part)), "{start}");
        }
    }
}
