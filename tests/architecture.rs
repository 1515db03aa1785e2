//! Arrows between crates run one way.

use std::collections::BTreeMap;
use std::process::Command;

/// What each crate may depend on inside the workspace.
const ALLOWED: &[(&str, &[&str])] = &[
    ("terrace-config", &[]),
    ("terrace-primary", &["terrace-config"]),
    ("terrace-kernels", &[]),
    ("terrace-copy", &["terrace-kernels"]),
    ("terrace-tiers", &["terrace-config", "terrace-primary"]),
    ("terrace-tiering", &["terrace-config", "terrace-primary", "terrace-tiers"]),
    (
        "terrace-connector",
        &["terrace-config", "terrace-primary", "terrace-tiers", "terrace-tiering", "terrace-kernels"],
    ),
    (
        "terrace",
        &[
            "terrace-config",
            "terrace-primary",
            "terrace-tiers",
            "terrace-tiering",
            "terrace-kernels",
            "terrace-connector",
        ],
    ),
    // It compiles files of the others, and depends on none.
    ("terrace-models", &[]),
    ("terrace-test-s3", &[]),
    (
        "terrace-simulation",
        &[
            "terrace-config",
            "terrace-primary",
            "terrace-tiers",
            "terrace-tiering",
            "terrace-kernels",
            "terrace-connector",
        ],
    ),
];

#[test]
fn arrows_run_one_way() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    let allowed: BTreeMap<_, _> = ALLOWED.iter().copied().collect();
    let packages = metadata["packages"].as_array().expect("packages");
    assert_eq!(packages.len(), allowed.len(), "a crate was added: say here what it may depend on");
    for package in packages {
        let name = package["name"].as_str().expect("name");
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let target = dependency["name"].as_str().expect("name");
            if target.starts_with("terrace") && dependency["kind"].is_null() {
                assert!(allowed[name].contains(&target), "{name} must not depend on {target}");
            }
        }
    }
}

/// The driver's functions are named in one folder only.
#[test]
fn only_the_gpu_folder_names_the_driver() {
    let mut folders = vec![std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("kernels/src")];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the tree") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let names_it = std::fs::read_to_string(&path).expect("a source").contains("use cudarc::");
                assert!(!names_it || folder.ends_with("cuda/gpu"), "{} names the CUDA driver", path.display());
                seen += usize::from(names_it);
            }
        }
    }
    assert!(seen > 0, "the folder has moved");
}
