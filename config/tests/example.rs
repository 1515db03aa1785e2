//! `terrace.example.toml`, the schema and the parser know the same keys and the same defaults.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use terrace_config::{Config, ObjectConfig, TenantConfig, TierKind, example, schema};

fn file() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../terrace.example.toml");
    std::fs::read_to_string(path).expect("terrace.example.toml stands beside the workspace's Cargo.toml")
}

/// The file's four parts: up to the memory tier, up to the object tier, up to the tenants, and those.
fn parts(file: &str) -> [&str; 4] {
    let (most, rest) = file.split_once("\n# A memory tier").expect("a memory tier");
    let (memory, rest) = rest.split_once("\n# An object tier").expect("an object tier");
    let (object, tenant) = rest.split_once("\n# What holds for one tenant").expect("a tenant comes last");
    // Without the rest of the line that starts each.
    [most, memory, object, tenant]
        .map(|part| if part == most { part } else { part.split_once('\n').expect("its keys").1 })
}

/// A part with every `#key = value` taken in, but for `blocks`: one size is enough.
fn all_in_force(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("#blocks ="));
    lines
        .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line).to_owned() + "\n")
        .collect()
}

/// `table.key` and literal of each assignment, commented out or not.
fn assignments(text: &str) -> BTreeMap<String, String> {
    let mut table = String::new();
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with("# ")) {
        let line = line.trim_start_matches('#');
        if let Some((key, value)) = line.split_once(" = ") {
            let twice = found.insert(format!("{table}.{key}"), value.to_owned());
            assert_eq!(twice, None, "{line}");
        } else if line.starts_with('[') {
            table = line.trim_matches(['[', ']']).to_owned();
        } else {
            assert_eq!(line, "", "neither a table nor a key");
        }
    }
    found
}

/// `table.key` and its schema, of tiers that of the kind at `tier_kind`.
fn properties(tier_kind: usize) -> BTreeMap<String, Value> {
    let schema = schema();
    let mut found = BTreeMap::new();
    for (name, table) in schema["properties"].as_object().expect("tables") {
        let table = match name.as_str() {
            "tier" => &table["items"]["oneOf"][tier_kind],
            "tenant" => continue,
            _ => table,
        };
        for (key, property) in table["properties"].as_object().expect("keys") {
            found.insert(format!("{name}.{key}"), property.clone());
        }
    }
    found
}

#[test]
fn the_file_is_what_the_table_of_keys_says() {
    assert!(file() == example(), "terrace.example.toml is stale: `terrace config example > terrace.example.toml`");
}

/// Whether the literals in the file are the defaults in the schema. Gives the number of those.
fn check_defaults(file: &BTreeMap<String, String>, properties: &BTreeMap<String, Value>) -> usize {
    let mut defaults = 0;
    for (key, property) in properties {
        assert!(property["description"].as_str().is_some_and(|text| text.ends_with('.')), "{key}");
        if let Some(default) = property.get("default") {
            let literal: toml::Table = format!("v = {}", file[key]).parse().expect("a TOML literal");
            let written = match &literal["v"] {
                toml::Value::Boolean(flag) => Value::from(*flag),
                toml::Value::Integer(number) => Value::from(*number),
                toml::Value::Float(number) => Value::from(*number),
                toml::Value::String(text) => Value::from(text.as_str()),
                toml::Value::Array(items) if items.is_empty() => Value::Array(Vec::new()),
                other => panic!("no default looks like {other}"),
            };
            assert_eq!(&written, default, "{key}");
            defaults += 1;
        }
    }
    defaults
}

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, "terrace.example.toml").map_err(|error| error.to_string())
}

#[test]
fn every_key_of_the_schema_stands_in_the_file_with_its_default() {
    let file = file();
    let (file, properties) = (assignments(parts(&file)[0]), properties(0));
    assert_eq!(file.keys().collect::<Vec<_>>(), properties.keys().collect::<Vec<_>>());
    // All but the sizes, `numa_node`, a tier's `type`, `name` and `paths`, the copies' `nvrtc` and `cache_dir`, and the server's `group`
    // and `metrics`.
    assert_eq!(check_defaults(&file, &properties), properties.len() - 12);
}

#[test]
fn the_file_parses_and_its_commented_lines_change_nothing() {
    let file = file();
    let as_it_stands = parse(&file).expect("it parses");
    assert_eq!(as_it_stands.primary.blocks, 32_768);
    let mut in_force = parse(&all_in_force(parts(&file)[0])).expect("it parses with every line in force");
    // The examples that are no defaults.
    assert_eq!(in_force.primary.numa_node.take(), Some(0));
    assert_eq!(in_force.copy.nvrtc.take(), Some("/usr/local/cuda/lib64/libnvrtc.so.12".into()));
    assert_eq!(in_force.copy.cache_dir.take(), Some("/var/cache/terrace/kernels".into()));
    assert_eq!(in_force.server.group.take().as_deref(), Some("vllm"));
    assert_eq!(in_force.server.metrics.take().as_deref(), Some("127.0.0.1:9464"));
    assert_eq!(in_force, as_it_stands);
    // All keys are in force there: the effective configuration writes no other.
    let mut shown: Vec<String> = assignments(&as_it_stands.to_toml()).into_keys().collect();
    shown.extend(
        [
            "copy.cache_dir",
            "copy.nvrtc",
            "primary.capacity",
            "primary.numa_node",
            "server.group",
            "server.metrics",
            "tier.blocks",
        ]
        .map(str::to_owned),
    );
    shown.sort();
    assert_eq!(shown, properties(0).into_keys().collect::<Vec<_>>());
}

#[test]
fn the_memory_tier_of_the_file_works() {
    let file = file();
    let [most, memory, ..] = parts(&file);
    let config = parse(&format!("{most}{}", memory.replace('#', ""))).expect("it parses");
    let kinds: Vec<_> = config.tiers.iter().map(|tier| tier.kind.word()).collect();
    assert_eq!(kinds, ["nvme", "memory"]);
    assert!(matches!(config.tiers[1].kind, TierKind::Memory(memory) if memory.capacity_bytes == 16 << 30));
}

#[test]
fn the_object_tier_of_the_file_has_every_key_and_works() {
    let file = file();
    let [_, _, object, _] = parts(&file);
    let mut written = assignments(object);
    for common in ["tier.name", "tier.blocks", "tier.backfill"] {
        written.insert(common.to_owned(), "false".to_owned());
    }
    let mut properties = properties(2);
    properties.retain(|key, _| key.starts_with("tier."));
    assert_eq!(written.keys().collect::<Vec<_>>(), properties.keys().collect::<Vec<_>>());
    // All but the sizes, `type`, `name` and `url`, and the keys that are unset by default.
    assert_eq!(check_defaults(&written, &properties), properties.len() - 12);

    let config = parse(&format!("[primary]\nblocks = 9\n{}", all_in_force(object))).expect("it parses");
    let TierKind::Object(object) = &config.tiers[0].kind else { panic!("{:?}", config.tiers) };
    let want = ObjectConfig {
        endpoint: Some("http://127.0.0.1:8333".to_owned()),
        ca_file: Some("/etc/terrace/ca.pem".into()),
        credentials_file: Some("/etc/terrace/credentials".into()),
        node: Some("node-1".to_owned()),
        max_age: Some(Duration::from_secs(30 * 86_400)),
        read_bytes_per_day: Some(10 << 40),
        write_bytes_per_day: Some(10 << 40),
        ..ObjectConfig::new("s3://bucket/terrace", 100 << 40)
    };
    assert_eq!(*object, want);
}

#[test]
fn the_tenant_of_the_file_has_every_key_and_works() {
    let file = file();
    let [.., tenant] = parts(&file);
    let written = assignments(tenant);
    let schema = schema();
    let properties = schema["properties"]["tenant"]["items"]["properties"].as_object().expect("keys");
    let properties: BTreeMap<_, _> =
        properties.iter().map(|(key, property)| (format!("tenant.{key}"), property.clone())).collect();
    assert_eq!(written.keys().collect::<Vec<_>>(), properties.keys().collect::<Vec<_>>());
    // All but its name.
    assert_eq!(check_defaults(&written, &properties), properties.len() - 1);
    let config = parse(&format!("[primary]\nblocks = 9\n{}", all_in_force(tenant))).expect("it parses");
    assert_eq!(config.tenants, [TenantConfig { name: "acme".to_owned(), ..TenantConfig::default() }]);
}
