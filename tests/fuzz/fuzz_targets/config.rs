//! Any text as a configuration: it is refused with faults that can be shown, or it is one that comes back when it is written and read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_config::{Config, ConfigError};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Config::parse(text, "fuzzed.toml") {
        Ok(config) => {
            let written = config.to_toml();
            let again = Config::parse(&written, "written.toml").expect("what was written is a configuration");
            assert_eq!(again, config);
            assert_eq!(again.to_toml(), written);
            config.validate("validated").expect("what was read is valid");
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(!matches!(&error, ConfigError::Invalid { faults, .. } if faults.is_empty()));
        }
    }
});
