//! What is written parses back to what it was, and no text at all makes the parser panic.

use std::path::PathBuf;
use std::time::Duration;

use proptest::prelude::*;
use terrace_config::*;

fn duration() -> impl Strategy<Value = Duration> {
    let nanos = prop_oneof![1_000_000..=86_400_000_000_000_u64, (1..=86_400_u64).prop_map(|secs| secs * 1_000_000_000)];
    nanos.prop_map(Duration::from_nanos)
}

fn choice() -> impl Strategy<Value = Choice> {
    prop_oneof![Just(Choice::Auto), Just(Choice::Require), Just(Choice::Off)]
}

fn primary() -> impl Strategy<Value = PrimaryConfig> {
    let policy = prop_oneof![Just(Policy::Lru), Just(Policy::Arc)];
    let flags = (any::<bool>(), any::<bool>());
    (1..=65_536_u32, policy, choice(), flags, proptest::option::of(0..=1023_u32), 0..=256_u32).prop_map(
        |(blocks, policy, huge_pages, (lock_memory, check_on_load), numa_node, prefault_threads)| PrimaryConfig {
            blocks,
            policy,
            huge_pages,
            lock_memory,
            numa_node,
            prefault_threads,
            check_on_load,
        },
    )
}

fn geometry() -> impl Strategy<Value = Geometry> {
    // Blocks of 512 bytes and more: a tier of 1 TiB may not hold more than 2^31.
    (512..=131_072_u32, 1..=65_536_u32, 1..=4096_u32, 1..=1024_u32, 1..=64_u8).prop_map(
        |(page_bytes, tokens_per_block, blocks_per_chunk, groups, hash_bytes)| Geometry {
            block_bytes: page_bytes * blocks_per_chunk,
            tokens_per_block,
            blocks_per_chunk,
            groups,
            hash_bytes,
        },
    )
}

fn namespace() -> impl Strategy<Value = Namespace> {
    proptest::array::uniform9(".{0,12}").prop_map(
        |[model, revision, dtype, kv_layout, quantisation, rope, parallel, engine, tenant]| Namespace {
            model,
            revision,
            dtype,
            kv_layout,
            quantisation,
            rope,
            parallel,
            engine,
            tenant,
        },
    )
}

fn limits() -> impl Strategy<Value = Limits> {
    let share = || 0.0..=1.0_f64;
    let entries = || 1..=16_777_216_u32;
    (share(), share(), entries(), share(), entries(), entries(), entries()).prop_map(
        |(promotion_share, cascade_share, queued_cascades, pin_share, requests, keys_per_call, events)| Limits {
            promotion_share,
            cascade_share,
            queued_cascades,
            pin_share,
            requests,
            keys_per_call,
            events,
        },
    )
}

fn deadlines() -> impl Strategy<Value = Deadlines> {
    proptest::array::uniform6(duration()).prop_map(|[lookup, promotion, cascade, hold, pin, drain]| Deadlines {
        lookup,
        promotion,
        cascade,
        hold,
        pin,
        drain,
    })
}

/// A tier for blocks of up to 512 MiB. Its name and directories start with `i`, so that tiers do not clash.
fn tier(i: usize) -> impl Strategy<Value = TierConfig> {
    let capacity = || (2_u64 << 30)..=(1 << 40);
    let paths = proptest::collection::vec("[^/\\x00]{1,8}", 1..4).prop_map(move |names| {
        let named = names.iter().enumerate();
        named.map(|(j, name)| PathBuf::from(format!("/{i}/{j}{name}"))).collect::<Vec<_>>()
    });
    let nvme = (
        (paths, capacity(), 0.6..=1.0_f64, 0.0..=0.6_f64),
        (1..=4096_u32, 1..=16_777_216_u32, choice(), choice(), choice(), 0..=1_u64 << 40),
    )
        .prop_map(|((paths, capacity_bytes, high_watermark, low_watermark), rest)| {
            let (queue_depth, queue_entries, direct_io, io_uring, catalog, scrub_bytes_per_second) = rest;
            TierKind::Nvme(NvmeConfig {
                paths,
                capacity_bytes,
                high_watermark,
                low_watermark,
                queue_depth,
                queue_entries,
                direct_io,
                io_uring,
                catalog,
                scrub_bytes_per_second,
            })
        });
    let memory = capacity().prop_map(|capacity_bytes| TierKind::Memory(MemoryConfig { capacity_bytes }));
    let object =
        (object(i), capacity(), 0.6..=1.0_f64, 0.0..=0.6_f64).prop_map(|(object, capacity_bytes, high, low)| {
            TierKind::Object(ObjectConfig { capacity_bytes, high_watermark: high, low_watermark: low, ..object })
        });
    ("[A-Za-z0-9._-]{0,20}", any::<bool>(), prop_oneof![nvme, memory, object])
        .prop_map(move |(name, backfill, kind)| TierConfig { name: format!("{i}{name}"), backfill, kind })
}

/// An object tier for blocks of up to 512 MiB.
fn object(i: usize) -> impl Strategy<Value = ObjectConfig> {
    use proptest::option::of;
    let label = || "[A-Za-z0-9._-]{1,20}";
    let age = |least: u64| (least..=315_360_000_u64).prop_map(Duration::from_secs);
    let path = || of("/[^\\x00]{1,8}".prop_map(PathBuf::from));
    let credentials = prop_oneof![
        (path(), Just(Credentials::Chain)),
        Just((None, Credentials::Environment)),
        "/[a-z]{1,8}".prop_map(|file| (Some(file.into()), Credentials::File)),
        Just((None, Credentials::None)),
    ];
    let bucket =
        (of(Just("https://host:9000".to_owned())), path(), credentials, "[a-z]{3,9}(/[A-Za-z0-9_-]{1,9}){0,3}");
    let place = prop_oneof![
        bucket.prop_map(move |(endpoint, ca_file, (credentials_file, credentials), place)| ObjectConfig {
            endpoint,
            ca_file,
            credentials_file,
            credentials,
            ..ObjectConfig::new(format!("s3://{i}{place}"), 0)
        }),
        "[^/\\x00]{0,8}".prop_map(move |name| ObjectConfig::new(format!("file:///{i}/0{name}"), 0)),
    ];
    let words = (label(), label(), label(), of(label()), any::<bool>(), any::<bool>());
    let sizes =
        ((513_u32 << 20)..=(1 << 30), (5_u32 << 20)..=(1 << 30), (64_u32 << 10)..=(1 << 30), (1_u64 << 30)..=(1 << 60));
    let times = (duration(), duration(), duration(), duration(), duration());
    let ages = (of(age(1)), age(600), age(2 * 86_400), (3..=86_400_u64).prop_map(Duration::from_secs));
    let limits =
        (1..=1024_u32, 1..=16_777_216_u32, any::<u32>(), any::<u32>(), of(1..=(1_u64 << 60)), of(1..=(1_u64 << 60)));
    let collector = prop_oneof![Just(Collector::Auto), Just(Collector::Always), Just(Collector::Never)];
    (place, words, sizes, times, ages, limits, collector, 0.0..=1.0_f64).prop_map(
        |(place, words, sizes, times, ages, limits, collector, hedge_share)| {
            let (region, env_prefix, credentials_profile, node, path_style, sign_payload) = words;
            let (segment_bytes, part_bytes, range_bytes, staging_bytes) = sizes;
            let (linger, publish_interval, fold, other_fold, compaction_interval) = times;
            let (max_age, orphan_age, log_retention, lease) = ages;
            let (connections, queue_entries, reads, writes, read_bytes_per_day, write_bytes_per_day) = limits;
            ObjectConfig {
                region,
                env_prefix,
                credentials_profile,
                node,
                path_style,
                sign_payload,
                segment_bytes,
                part_bytes,
                range_bytes,
                staging_bytes,
                linger,
                publish_interval,
                fold_interval: fold.min(other_fold),
                fold_interval_max: fold.max(other_fold),
                compaction_interval,
                max_age,
                orphan_age,
                log_retention,
                lease,
                connections,
                queue_entries,
                read_requests_per_second: reads,
                write_requests_per_second: writes,
                read_bytes_per_day,
                write_bytes_per_day,
                collector,
                hedge_share,
                ..place
            }
        },
    )
}

fn server() -> impl Strategy<Value = ServerConfig> {
    let texts = proptest::collection::vec("[a-z0-9\"\\\\]{0,8}", 0..4);
    let format = prop_oneof![Just(LogFormat::Text), Just(LogFormat::Json)];
    let names = ("/[a-z]{1,9}", proptest::option::of("[a-z]{1,9}"), texts, proptest::option::of("[0-9.:]{1,20}"));
    let bounds = (1..=64_u32, 1..=65_536_u32, (64 << 10)..=(1_u32 << 30), 1..=(1_u32 << 24), 1..=(1_u32 << 24));
    (names, bounds, 0.0..=1.0_f64, format).prop_map(|(names, bounds, session_share, log_format)| {
        let (socket, group, allow_users, metrics) = names;
        let (pools, sessions, message_bytes, keys_per_message, jobs_per_session) = bounds;
        ServerConfig {
            socket: socket.into(),
            group,
            allow_users,
            pools,
            sessions,
            message_bytes,
            keys_per_message,
            jobs_per_session,
            session_share,
            log_format,
            metrics,
        }
    })
}

fn copy() -> impl Strategy<Value = CopyConfig> {
    use proptest::option::of;
    let engine = prop_oneof![Just(CopyChoice::Auto), Just(CopyChoice::Host), Just(CopyChoice::Cuda)];
    let path = prop_oneof![
        Just(CopyPath::Auto),
        Just(CopyPath::Batch),
        Just(CopyPath::Runs),
        Just(CopyPath::Rects),
        Just(CopyPath::Kernel),
    ];
    let device = prop_oneof![
        any::<u32>().prop_map(|number| number.to_string()),
        "GPU-[0-9a-f]{32}",
        "GPU-[0-9A-F]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    ];
    let place = || of("/[^\\x00]{1,8}".prop_map(PathBuf::from));
    let bounds = (1..=1024_u32, 1..=1_048_576_u32, 1..=524_288_u64, 1..=64_u32);
    (engine, proptest::collection::vec(device, 0..4), path, bounds, place(), place()).prop_map(
        |(engine, devices, path, (kernel_blocks, queue_entries, pieces, register_threads), nvrtc, cache_dir)| {
            CopyConfig {
                engine,
                devices,
                path,
                kernel_blocks,
                queue_entries,
                piece_bytes: pieces << 21,
                register_threads,
                nvrtc,
                cache_dir,
            }
        },
    )
}

/// Tenants of different names, some with keys, some of these with encryption.
fn tenants() -> impl Strategy<Value = Vec<TenantConfig>> {
    let keys = proptest::collection::vec("[^\\x00]{1,12}", 0..4);
    // Two of them fit.
    let shares = (0.0..=0.5_f64, 0.5..=1.0_f64);
    let tenant = (keys, any::<bool>(), any::<bool>(), shares).prop_map(|(keys, by_command, encrypt, shares)| {
        let encrypt = encrypt && !keys.is_empty();
        let (key_files, key_commands) = if by_command { (Vec::new(), keys) } else { (keys, Vec::new()) };
        TenantConfig { name: String::new(), guaranteed: shares.0, maximum: shares.1, key_files, key_commands, encrypt }
    });
    proptest::collection::btree_map("[^\\x00*]{1,8}", tenant, 0..3)
        .prop_map(|tenants| tenants.into_iter().map(|(name, tenant)| TenantConfig { name, ..tenant }).collect())
}

prop_compose! {
    fn config()(
        primary in primary(),
        geometry in geometry(),
        namespace in namespace(),
        (store_threshold, tracker_entries) in (1..=1_000_000_u32, 1..=16_777_216_u32),
        limits in limits(),
        deadlines in deadlines(),
        (failures, cooldown, slow_factor, stall) in (1..=1_000_000_u32, duration(), 0..=1_000_000_u32, duration()),
        tiers in (tier(0), tier(1), tier(2)),
        tier_count in 0..=3_usize,
        tenants in tenants(),
        server in server(),
        copy in copy(),
    ) -> Config {
        Config {
            primary,
            geometry,
            namespace,
            admission: AdmissionConfig { store_threshold, tracker_entries },
            limits,
            deadlines,
            breaker: BreakerConfig { failures, cooldown, slow_factor, stall },
            copy,
            // A place for each tenant.
            server: ServerConfig { pools: server.pools.max(2), ..server },
            tiers: [tiers.0, tiers.1, tiers.2].into_iter().take(tier_count).collect(),
            tenants,
        }
    }
}

/// Lines that make something of a file, good and bad, so that random texts get past the TOML.
fn line() -> impl Strategy<Value = String> {
    let key = prop_oneof![
        "primary|geometry|limits|deadlines|tier|capacity|blocks|block_bytes|paths|type|name|low_watermark|high_watermark|url|endpoint|password",
        "[a-z_.\"]{0,8}",
    ];
    let value = prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|n| format!("{n:?}")),
        "\"[0-9]{0,25}(\\.[0-9]{0,5})? ?(B|KiB|PiB|GB|ms|h|d|nvme|memory|object|s3://abc|é)?\"",
        "\\[(\"/[a-c]{0,2}/?\", ?){0,4}\\]",
        ".{0,12}",
    ];
    (key, value, 0..4).prop_map(|(key, value, shape)| match shape {
        0 => format!("[{key}]"),
        1 => format!("[[{key}]]"),
        _ => format!("{key} = {value}"),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn written_and_parsed_is_the_same(config in config()) {
        let text = config.to_toml();
        match Config::parse(&text, "written") {
            Ok(parsed) => prop_assert_eq!(parsed, config),
            Err(error) => prop_assert!(false, "{}\n{}", error, text),
        }
    }

    #[test]
    fn no_text_panics(text in any::<String>()) {
        let _ = Config::parse(&text, "any");
    }

    #[test]
    fn no_lines_panic_and_what_they_give_is_sound(lines in proptest::collection::vec(line(), 0..12)) {
        let text = lines.join("\n");
        match Config::parse(&text, "any") {
            Ok(config) => prop_assert!(config.validate("itself").is_ok(), "{}", text),
            Err(error) => {
                prop_assert!(!error.faults().is_empty());
                for fault in error.faults() {
                    let lines = text.lines().count().max(1);
                    prop_assert!(fault.line.is_some_and(|line| (1..=lines).contains(&line)), "{:?}\n{}", fault, text);
                    prop_assert!(!fault.bound.is_empty() && !fault.fix.is_empty());
                    prop_assert!(!fault.to_string().contains(char::is_control), "{:?}", fault);
                }
            }
        }
    }
}

#[test]
fn what_is_left_out_has_its_default() {
    let text = "[primary]\ncapacity = \"1GiB\"\n[[tier]]\ntype = \"nvme\"\npaths = [\"/a\", \"/b\"]\nblocks = 10\n\
                [[tier]]\ntype = \"memory\"\nblocks = 3\n[[tier]]\ntype = \"nvme\"\npaths = [\"c\"]\ncapacity = 1_073_741_824\n\
                [[tier]]\ntype = \"object\"\nurl = \"s3://abc\"\nblocks = 2\n";
    let secs = Duration::from_secs;
    let nvme = |paths: &[&str], capacity_bytes| {
        TierKind::Nvme(NvmeConfig {
            paths: paths.iter().map(PathBuf::from).collect(),
            capacity_bytes,
            high_watermark: 1.0,
            low_watermark: 0.99,
            queue_depth: 64,
            queue_entries: 65_536,
            direct_io: Choice::Auto,
            io_uring: Choice::Auto,
            catalog: Choice::Auto,
            scrub_bytes_per_second: 4 << 20,
        })
    };
    let object = ObjectConfig {
        url: "s3://abc".to_owned(),
        capacity_bytes: 2 * ((2 << 20) + 256),
        endpoint: None,
        region: "us-east-1".to_owned(),
        path_style: true,
        ca_file: None,
        credentials: Credentials::Chain,
        env_prefix: "AWS_".to_owned(),
        credentials_file: None,
        credentials_profile: "default".to_owned(),
        sign_payload: false,
        node: None,
        high_watermark: 0.95,
        low_watermark: 0.9,
        max_age: None,
        segment_bytes: 4 << 20,
        part_bytes: 16 << 20,
        range_bytes: 8 << 20,
        linger: Duration::from_millis(100),
        staging_bytes: 512 << 20,
        connections: 32,
        queue_entries: 65_536,
        publish_interval: Duration::from_millis(200),
        fold_interval: Duration::from_millis(500),
        fold_interval_max: secs(30),
        hedge_share: 0.05,
        read_requests_per_second: 0,
        write_requests_per_second: 0,
        read_bytes_per_day: None,
        write_bytes_per_day: None,
        collector: Collector::Auto,
        lease: secs(30),
        compaction_interval: secs(60),
        orphan_age: secs(3600),
        log_retention: secs(3600),
    };
    assert_eq!(ObjectConfig::new("s3://abc", object.capacity_bytes), object);
    let tier = |name: &str, kind| TierConfig { name: name.to_owned(), backfill: false, kind };
    let want = Config {
        primary: PrimaryConfig {
            blocks: 512,
            policy: Policy::Lru,
            huge_pages: Choice::Auto,
            lock_memory: false,
            numa_node: None,
            prefault_threads: 0,
            check_on_load: false,
        },
        geometry: Geometry {
            block_bytes: 2 << 20,
            tokens_per_block: 16,
            blocks_per_chunk: 1,
            groups: 1,
            hash_bytes: 32,
        },
        namespace: Namespace::default(),
        admission: AdmissionConfig { store_threshold: 1, tracker_entries: 65_536 },
        limits: Limits {
            promotion_share: 0.5,
            cascade_share: 0.25,
            queued_cascades: 65_536,
            pin_share: 0.25,
            requests: 65_536,
            keys_per_call: 1_048_576,
            events: 65_536,
        },
        deadlines: Deadlines {
            lookup: secs(5),
            promotion: secs(10),
            cascade: secs(30),
            hold: secs(10),
            pin: secs(300),
            drain: secs(30),
        },
        breaker: BreakerConfig { failures: 5, cooldown: secs(5), slow_factor: 10, stall: secs(2) },
        copy: CopyConfig {
            engine: CopyChoice::Auto,
            devices: Vec::new(),
            path: CopyPath::Auto,
            kernel_blocks: 16,
            queue_entries: 1024,
            piece_bytes: 256 << 20,
            register_threads: 4,
            nvrtc: None,
            cache_dir: None,
        },
        server: ServerConfig {
            socket: "/run/terrace/terrace.sock".into(),
            group: None,
            allow_users: Vec::new(),
            pools: 1,
            sessions: 256,
            message_bytes: 16 << 20,
            keys_per_message: 131_072,
            jobs_per_session: 65_536,
            session_share: 0.5,
            log_format: LogFormat::Text,
            metrics: None,
        },
        tenants: Vec::new(),
        tiers: vec![
            tier("nvme", nvme(&["/a", "/b"], 10 * ((2 << 20) + 4096))),
            tier("memory", TierKind::Memory(MemoryConfig { capacity_bytes: 3 * (2 << 20) })),
            tier("nvme-2", nvme(&["c"], 1 << 30)),
            tier("object", TierKind::Object(object)),
        ],
    };
    assert_eq!(Config::parse(text, "t.toml").map_err(|error| error.to_string()), Ok(want));
}

#[test]
fn capacity_is_rounded_down_to_whole_slots() {
    let config = Config::parse("primary.capacity = 20_479\ngeometry.block_bytes = 4_097", "t.toml").expect("good");
    assert_eq!((config.geometry.slot_stride(), config.primary.blocks), (8192, 2));
}
