//! `terrace.example.toml`, the schema and the parser know the same keys and the same defaults.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use terrace_config::{Config, TierKind, example, schema};

fn file() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../terrace.example.toml");
    std::fs::read_to_string(path).expect("terrace.example.toml stands beside the workspace's Cargo.toml")
}

/// The file with every `#key = value` taken in, but for `blocks` (one size is enough), and for the second tier.
fn all_in_force(text: &str) -> String {
    let (text, _) = text.split_once("\n# A memory tier").expect("the memory tier comes last");
    let lines = text.lines().filter(|line| !line.starts_with("#blocks ="));
    lines
        .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line).to_owned() + "\n")
        .collect()
}

/// `table.key` and literal of each assignment, commented out or not, of a file without its second tier.
fn assignments(text: &str) -> BTreeMap<String, String> {
    let mut table = String::new();
    let mut found = BTreeMap::new();
    let (text, _) = text.split_once("\n# A memory tier").expect("the memory tier comes last");
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

/// `table.key` and its schema, tiers as nvme ones.
fn properties() -> BTreeMap<String, Value> {
    let schema = schema();
    let mut found = BTreeMap::new();
    for (name, table) in schema["properties"].as_object().expect("tables") {
        let table = if name == "tier" { &table["items"]["oneOf"][0] } else { table };
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

#[test]
fn every_key_of_the_schema_stands_in_the_file_with_its_default() {
    let (file, properties) = (assignments(&file()), properties());
    let keys = |keys: Vec<&String>| keys.into_iter().cloned().collect::<Vec<_>>();
    assert_eq!(keys(file.keys().collect()), keys(properties.keys().collect()));
    let mut defaults = 0;
    for (key, property) in &properties {
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
    // All but the sizes, `numa_node`, a tier's `type`, `name` and `paths`, and the server's `group` and `metrics`.
    assert_eq!(defaults, properties.len() - 10);
}

#[test]
fn the_file_parses_and_its_commented_lines_change_nothing() {
    let parse = |text: &str| Config::parse(text, "terrace.example.toml").map_err(|error| error.to_string());
    let as_it_stands = parse(&file()).expect("it parses");
    assert_eq!(as_it_stands.primary.blocks, 32_768);
    let mut in_force = parse(&all_in_force(&file())).expect("it parses with every line in force");
    // The examples that are no defaults.
    assert_eq!(in_force.primary.numa_node.take(), Some(0));
    assert_eq!(in_force.server.group.take().as_deref(), Some("vllm"));
    assert_eq!(in_force.server.metrics.take().as_deref(), Some("127.0.0.1:9464"));
    assert_eq!(in_force, as_it_stands);
    // All keys are in force there: the effective configuration writes no other.
    let written = |text: &str| assignments(&format!("{text}\n# A memory tier"));
    let mut shown: Vec<String> = written(&as_it_stands.to_toml()).into_keys().collect();
    shown.extend(
        ["primary.capacity", "primary.numa_node", "server.group", "server.metrics", "tier.blocks"].map(str::to_owned),
    );
    shown.sort();
    assert_eq!(shown, properties().into_keys().collect::<Vec<_>>());
}

#[test]
fn the_memory_tier_of_the_file_works() {
    let file = file();
    let (_, memory) = file.split_once("\n# A memory tier").expect("the memory tier comes last");
    let (_, memory) = memory.split_once('\n').expect("its keys");
    let config = Config::parse(&format!("{file}{}", memory.replace('#', "")), "t.toml").expect("it parses");
    let kinds: Vec<_> = config.tiers.iter().map(|tier| tier.kind.word()).collect();
    assert_eq!(kinds, ["nvme", "memory"]);
    assert!(matches!(config.tiers[1].kind, TierKind::Memory(memory) if memory.capacity_bytes == 16 << 30));
}
