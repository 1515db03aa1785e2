//! `terrace config`: what a configuration file says, and all that is wrong with it.
//!
//! Output that a program may read (TOML, JSON) goes to stdout, everything else to stderr.

use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use terrace_config::{Config, ConfigError, Namespace, TierKind};

/// Status of a command that found faults.
const FAULTS: u8 = 2;
/// Status of a command that could not write its output.
const NOT_WRITTEN: u8 = 1;

/// `terrace config ...`
#[derive(Clone, Debug, clap::Subcommand)]
pub enum ConfigCommand {
    /// Check a configuration file: every fault at once, status 2 if there is one
    Check {
        /// The configuration file
        path: PathBuf,
    },
    /// Print the configuration in force, with every default, as TOML
    Show {
        /// The configuration file
        path: PathBuf,
    },
    /// Print the JSON Schema of configuration files
    Schema,
    /// Print a commented configuration file with every key
    Example,
}

impl ConfigCommand {
    /// Runs the command. Blocks while it reads the file and writes its output.
    pub fn run(&self) -> ExitCode {
        match self {
            Self::Check { path } => check(path),
            Self::Show { path } => show(path),
            Self::Schema => schema(),
            Self::Example => example(),
        }
    }
}

/// Tells every fault of the file at `path` on stderr, or in one line what it asks for. Status 2 if there is a fault.
pub fn check(path: &Path) -> ExitCode {
    status(write_check(path, &mut io::stderr().lock()))
}

/// Prints the configuration of the file at `path` with all defaults as TOML on stdout. Status 2 if it has faults.
pub fn show(path: &Path) -> ExitCode {
    status(write_show(path, &mut io::stdout().lock(), &mut io::stderr().lock()))
}

/// Prints the JSON Schema of configuration files on stdout.
pub fn schema() -> ExitCode {
    status(writeln!(io::stdout().lock(), "{:#}", terrace_config::schema()).map(|()| 0))
}

/// Prints `terrace.example.toml` on stdout.
pub fn example() -> ExitCode {
    status(io::stdout().lock().write_all(terrace_config::example().as_bytes()).map(|()| 0))
}

/// A reader that has seen enough (`terrace config show FILE | head`) is no failure.
fn status(written: io::Result<u8>) -> ExitCode {
    match written {
        Ok(status) => ExitCode::from(status),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(NOT_WRITTEN),
    }
}

fn write_check(path: &Path, messages: &mut dyn Write) -> io::Result<u8> {
    let config = match Config::load(path) {
        Ok(config) => config,
        Err(error) => return write_error(&error, messages),
    };
    writeln!(messages, "{}: good; {}", path.display(), summary(&config))?;
    if config.namespace == Namespace::default() {
        writeln!(messages, "note: [namespace] is empty: engines of other models must not use the same directories")?;
    }
    Ok(0)
}

fn write_show(path: &Path, out: &mut dyn Write, messages: &mut dyn Write) -> io::Result<u8> {
    match Config::load(path) {
        Ok(config) => out.write_all(config.to_toml().as_bytes()).map(|()| 0),
        Err(error) => write_error(&error, messages),
    }
}

fn write_error(error: &ConfigError, messages: &mut dyn Write) -> io::Result<u8> {
    write!(messages, "{error}")?;
    if let Some(source) = error.source() {
        write!(messages, ": {source}")?;
    }
    writeln!(messages)?;
    Ok(FAULTS)
}

/// The sizes, `blocks of 2.0 MiB; primary 32768 blocks (64.0 GiB, lru); nvme 2.0 TiB in 1 directory`.
fn summary(config: &Config) -> String {
    let geometry = &config.geometry;
    let primary_bytes = u64::from(config.primary.blocks) * u64::from(geometry.slot_stride());
    let mut text = format!(
        "blocks of {}; primary {} blocks ({}, {})",
        human_bytes(geometry.block_bytes.into()),
        config.primary.blocks,
        human_bytes(primary_bytes),
        config.primary.policy
    );
    for tier in &config.tiers {
        let (capacity_bytes, place) = match &tier.kind {
            TierKind::Nvme(nvme) if nvme.paths.len() == 1 => (nvme.capacity_bytes, " in 1 directory".to_owned()),
            TierKind::Nvme(nvme) => (nvme.capacity_bytes, format!(" in {} directories", nvme.paths.len())),
            TierKind::Memory(memory) => (memory.capacity_bytes, " of memory".to_owned()),
            TierKind::Object(object) => (object.capacity_bytes, format!(" at {}", object.url)),
        };
        text.push_str(&format!("; {} {}{place}", tier.name, human_bytes(capacity_bytes)));
    }
    text
}

/// `bytes` for people, rounded.
pub fn human_bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} PiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Status, stdout and stderr of `check` and `show` on a file of this text, its path replaced by `FILE`.
    fn run(text: &str) -> [(u8, String, String); 2] {
        let dir = tempfile::tempdir().expect("a directory for the test");
        let path = dir.path().join("terrace.toml");
        std::fs::write(&path, text).expect("written");
        let (mut out, mut messages, mut checked) = (Vec::new(), Vec::new(), Vec::new());
        let check = write_check(&path, &mut checked).expect("no failure of a vector");
        let show = write_show(&path, &mut out, &mut messages).expect("no failure of a vector");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace(&path.display().to_string(), "FILE");
        [(check, String::new(), text(checked)), (show, text(out), text(messages))]
    }

    #[test]
    fn good_files_are_summed_up_and_shown() {
        let text = "[primary]\ncapacity = \"1GiB\"\n[namespace]\nmodel = \"m\"\n[[tier]]\ntype = \"nvme\"\n\
                    paths = [\"/a\", \"/b\"]\ncapacity = \"2TiB\"\n[[tier]]\ntype = \"memory\"\nblocks = 1\n\
                    [[tier]]\ntype = \"object\"\nurl = \"s3://abc/x\"\ncapacity = \"1TiB\"\n";
        let [check, show] = run(text);
        let want = "FILE: good; blocks of 2.0 MiB; primary 512 blocks (1.0 GiB, lru); nvme 2.0 TiB in 2 directories; \
                    memory 2.0 MiB of memory; object 1.0 TiB at s3://abc/x\n";
        assert_eq!(check, (0, String::new(), want.to_owned()));
        let again = Config::parse(&show.1, "shown").expect("it parses back");
        assert_eq!((show.0, again.primary.blocks, show.2.as_str()), (0, 512, ""));
    }

    #[test]
    fn faults_end_with_status_2() {
        let want = "FILE: 1 fault\nFILE:2: primary.blocks = 0: must be a whole number from 1 to 2147483648; write at least 1\n";
        let told = (FAULTS, String::new(), want.to_owned());
        assert_eq!(run("[primary]\nblocks = 0\n"), [told.clone(), told]);
        let mut messages = Vec::new();
        let status = write_check(Path::new("/nowhere/terrace.toml"), &mut messages).expect("no failure of a vector");
        let want = "/nowhere/terrace.toml: cannot be read: No such file or directory (os error 2)\n";
        assert_eq!((status, String::from_utf8_lossy(&messages).as_ref()), (FAULTS, want));
    }

    #[test]
    fn an_empty_namespace_is_noted() {
        let [check, _] = run("[primary]\nblocks = 9\n");
        assert!(check.0 == 0 && check.2.contains("\nnote: [namespace] is empty"), "{check:?}");
    }
}
