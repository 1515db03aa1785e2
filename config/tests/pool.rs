//! What a pool gets of a daemon's configuration.

use terrace_config::{Config, Geometry, Namespace, TierKind};

const TEXT: &str = "[primary]\ncapacity = \"64MiB\"\n[server]\npools = 2\n\
    [[tier]]\ntype = \"nvme\"\npaths = [\"/a\", \"/b\"]\ncapacity = \"1GiB\"\n[[tier]]\ntype = \"memory\"\ncapacity = \"32MiB\"\n";
const GEOMETRY: Geometry =
    Geometry { block_bytes: 5000, tokens_per_block: 128, blocks_per_chunk: 2, groups: 2, hash_bytes: 20 };

fn config() -> Config {
    Config::parse(TEXT, "pool.toml").expect("it parses")
}

#[test]
fn pools_have_equal_parts_and_directories_of_their_own() {
    let namespace = Namespace { model: "m".to_owned(), ..Namespace::default() };
    let pool = config().for_pool(1, namespace.clone(), GEOMETRY, "hello").expect("it fits");
    assert_eq!((pool.namespace.clone(), pool.geometry), (namespace, GEOMETRY));
    assert_eq!(pool.primary.blocks, (32 << 20) / 8192);
    match &pool.tiers[0].kind {
        TierKind::Nvme(nvme) => {
            assert_eq!(nvme.capacity_bytes, 512 << 20);
            assert_eq!(nvme.paths, ["/a/pool-1", "/b/pool-1"].map(std::path::PathBuf::from));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(&pool.tiers[1].kind, TierKind::Memory(memory) if memory.capacity_bytes == 16 << 20));
}

#[test]
fn the_only_pool_has_everything_where_the_file_says() {
    let mut config = config();
    config.server.pools = 1;
    let pool = config.for_pool(0, Namespace::default(), GEOMETRY, "hello").expect("it fits");
    assert_eq!(pool.primary.blocks, (64 << 20) / 8192);
    assert!(matches!(&pool.tiers[0].kind, TierKind::Nvme(nvme) if nvme.paths[0].ends_with("a")));
}

#[test]
fn a_geometry_that_does_not_fit_names_its_key() {
    let refused = |geometry: Geometry| {
        let error = config().for_pool(0, Namespace::default(), geometry, "session 7").expect_err("it does not fit");
        error.to_string()
    };
    assert!(refused(Geometry { block_bytes: 0, ..GEOMETRY }).contains("geometry.block_bytes"));
    assert!(refused(Geometry { hash_bytes: 0, ..GEOMETRY }).contains("geometry.hash_bytes"));
    let too_large = refused(Geometry { block_bytes: 64 << 20, ..GEOMETRY });
    assert!(too_large.contains("session 7") && too_large.contains("primary.blocks"), "{too_large}");
}

#[test]
fn pools_share_a_bucket_and_its_limits() {
    let text = "[primary]\nblocks = 9\n[server]\npools = 4\n[[tier]]\ntype = \"object\"\ncapacity = \"1TiB\"\nurl = \"s3://abc/x\"\n\
                read_requests_per_second = 2\nread_bytes_per_day = \"1GiB\"\n";
    let config = Config::parse(text, "pool.toml").expect("it parses");
    let pool = config.for_pool(3, Namespace::default(), GEOMETRY, "hello").expect("it fits");
    let TierKind::Object(object) = &pool.tiers[0].kind else { panic!("{:?}", pool.tiers) };
    assert_eq!((object.url.as_str(), object.capacity_bytes), ("s3://abc/x", 256 << 30));
    // A limit never becomes none.
    assert_eq!((object.read_requests_per_second, object.write_requests_per_second), (1, 0));
    assert_eq!((object.read_bytes_per_day, object.write_bytes_per_day), (Some(256 << 20), None));
    let large = Geometry { block_bytes: 1 << 30, blocks_per_chunk: 1, ..GEOMETRY };
    let mut roomy = config;
    roomy.primary.blocks = 1 << 16;
    let error = roomy
        .for_pool(0, Namespace::default(), large, "session 7")
        .expect_err("the staging memory holds no block")
        .to_string();
    assert!(error.contains("tier[0].staging_bytes"), "{error}");
}
