//! Every kind of fault: what is refused, where, and what the fault says.

use terrace_config::{Config, ConfigError, Fault};

fn faults(text: &str) -> Vec<Fault> {
    match Config::parse(text, "t.toml") {
        Ok(_) => Vec::new(),
        Err(error) => error.faults().to_vec(),
    }
}

const SECRET_IN_LINE_7: &str = "7: tier[0].password = (not shown): is no key of a tier; remove it: credentials come from the environment, \
    a file or the provider chain: see the keys credentials, env_prefix and credentials_file of a [[tier]] of type \"object\"";

/// `line: fault` of each.
fn told(text: &str) -> Vec<String> {
    faults(text).iter().map(|fault| format!("{}: {fault}", fault.line.unwrap_or(0))).collect()
}

/// One line that is put under its table, into a file that is good otherwise, and the one fault that it gives.
#[test]
fn values() {
    for (table, line, want) in [
        // Counts.
        ("limits", "events = 0", "must be a whole number from 1 to 16777216; write at least 1"),
        ("limits", "events = -1", "must be a whole number from 1 to 16777216; write at least 1"),
        (
            "limits",
            "events = 99999999999999999999999999999999999999999",
            "must be a whole number from 1 to 16777216; write at most 16777216",
        ),
        (
            "limits",
            "events = -99999999999999999999999999999999999999999",
            "must be a whole number from 1 to 16777216; write at least 1",
        ),
        ("limits", "events = \"12\"", "must be a whole number from 1 to 16777216; write 12 without quotes"),
        ("limits", "events = 5.0", "must be a whole number from 1 to 16777216; write 65536"),
        ("limits", "events = true", "must be a whole number from 1 to 16777216; write 65536"),
        ("limits", "events = 1979-05-27", "must be a whole number from 1 to 16777216; write 65536"),
        ("limits", "events = [1]", "must be a whole number from 1 to 16777216; write 65536"),
        ("geometry", "hash_bytes = 0", "must be a whole number from 1 to 64; write at least 1"),
        ("geometry", "hash_bytes = 65", "must be a whole number from 1 to 64; write at most 64"),
        ("geometry", "groups = 0", "must be a whole number from 1 to 1024; write at least 1"),
        ("geometry", "tokens_per_block = 0", "must be a whole number from 1 to 65536; write at least 1"),
        ("tier", "queue_depth = 0", "must be a whole number from 1 to 4096; write at least 1"),
        ("tier", "queue_depth = 4097", "must be a whole number from 1 to 4096; write at most 4096"),
        ("admission", "store_threshold = 0", "must be a whole number from 1 to 1000000; write at least 1"),
        // Sizes.
        ("geometry", "block_bytes = 0", "must be a size from 1B to 1GiB; write at least \"1B\""),
        ("geometry", "block_bytes = \"2GiB\"", "must be a size from 1B to 1GiB; write at most \"1GiB\""),
        ("geometry", "block_bytes = 1073741825", "must be a size from 1B to 1GiB; write at most \"1GiB\""),
        (
            "geometry",
            "block_bytes = \"2MB\"",
            "must be a size from 1B to 1GiB; \"MB\" is ambiguous: write \"2MiB\", or 2000000 (bytes) for the decimal unit",
        ),
        (
            "geometry",
            "block_bytes = \"0.5MiB\"",
            "must be a size from 1B to 1GiB; write a whole number of a smaller unit: \"512KiB\"",
        ),
        ("geometry", "block_bytes = 2e6", "must be a size from 1B to 1GiB; sizes are whole: write \"2MiB\""),
        (
            "geometry",
            "block_bytes = \"much\"",
            "must be a size from 1B to 1GiB; write a whole number and its unit, such as \"64GiB\"",
        ),
        // Durations.
        ("deadlines", "lookup = \"0s\"", "must be a duration from 1ms to 1d; write at least \"1ms\""),
        ("deadlines", "lookup = \"999us\"", "must be a duration from 1ms to 1d; write at least \"1ms\""),
        ("deadlines", "lookup = \"86400000000001ns\"", "must be a duration from 1ms to 1d; write at most \"1d\""),
        ("deadlines", "lookup = 5", "must be a duration from 1ms to 1d; write the unit: \"5s\" or \"5ms\""),
        ("deadlines", "lookup = 0.5", "must be a duration from 1ms to 1d; write \"5s\""),
        (
            "deadlines",
            "lookup = \"0.5s\"",
            "must be a duration from 1ms to 1d; write a whole number of a smaller unit: \"500ms\"",
        ),
        (
            "breaker",
            "cooldown = \"-5s\"",
            "must be a duration from 1ms to 1d; write a whole number and its unit, such as \"10ms\" or \"5s\"",
        ),
        // Shares.
        ("limits", "pin_share = 1.01", "must be a number from 0.0 to 1.0; write at most 1.0"),
        ("limits", "pin_share = -0.1", "must be a number from 0.0 to 1.0; write at least 0.0"),
        ("limits", "pin_share = 25", "must be a number from 0.0 to 1.0; write 0.25 for 25 percent"),
        ("limits", "pin_share = \"25%\"", "must be a number from 0.0 to 1.0; write 0.25"),
        ("limits", "pin_share = nan", "must be a number from 0.0 to 1.0; write 0.25"),
        ("limits", "pin_share = inf", "must be a number from 0.0 to 1.0; write at most 1.0"),
        // Words, flags, names, texts.
        ("primary", "policy = \"acr\"", "must be one of \"lru\", \"arc\"; write \"arc\""),
        ("primary", "policy = \"belady\"", "must be one of \"lru\", \"arc\"; write \"lru\""),
        ("primary", "huge_pages = true", "must be one of \"auto\", \"require\", \"off\"; write \"auto\""),
        ("primary", "lock_memory = \"yes\"", "must be true or false; write false"),
        ("primary", "numa_node = -1", "must be a whole number from 0 to 1023; write at least 0"),
        ("namespace", "model = 3", "must be a string of at most 4096 bytes; write \"\""),
        (
            "tier",
            "name = \"\"",
            "must be a string of 1 to 64 letters, digits, '-', '_' or '.'; write a name such as \"nvme-scratch\"",
        ),
        (
            "tier",
            "name = \"a b\"",
            "must be a string of 1 to 64 letters, digits, '-', '_' or '.'; write a name such as \"nvme-scratch\"",
        ),
        (
            "tier",
            "name = \"gpu\"",
            "must be a string of 1 to 64 letters, digits, '-', '_' or '.'; \"gpu\" is taken: write another name",
        ),
        // Relations.
        ("primary", "blocks = 3", "must not stand beside primary.capacity; remove one of the two"),
        ("tier", "blocks = 3", "must not stand beside tier[0].capacity; remove one of the two"),
        (
            "geometry",
            "blocks_per_chunk = 3",
            "must divide geometry.block_bytes, 2MiB; change one of them, block_bytes to \"2097150B\" for example",
        ),
        ("tier", "low_watermark = 1.0\nhigh_watermark = 0.9", "must be at most high_watermark, 0.9; write at most 0.9"),
        (
            "tier",
            "high_watermark = 0.9",
            "must be at least low_watermark, 0.99; write at least 0.99, or a low_watermark of at most 0.9 too",
        ),
        (
            "tier",
            "low_watermark = 0\nhigh_watermark = 0",
            "must leave room for one block of 2052KiB in the 1GiB of the tier; raise it, or the size of the tier",
        ),
        // Copies.
        ("copy", "engine = \"gpu\"", "must be one of \"auto\", \"host\", \"cuda\"; write \"auto\""),
        (
            "copy",
            "path = \"kernels\"",
            "must be one of \"auto\", \"batch\", \"runs\", \"rects\", \"kernel\"; write \"kernel\"",
        ),
        ("copy", "kernel_blocks = 1025", "must be a whole number from 1 to 1024; write at most 1024"),
        ("copy", "piece_bytes = \"1MiB\"", "must be a size from 2MiB to 1TiB; write at least \"2MiB\""),
        ("copy", "piece_bytes = \"5MiB\"", "must be a multiple of 2MiB; write \"4MiB\""),
        ("copy", "devices = 1", "must be a list of at most 256 numbers of devices or \"GPU-<uuid>\"; write [\"1\"]"),
        (
            "copy",
            "devices = [0, \"gpu-1\"]",
            "must be a list of at most 256 numbers of devices or \"GPU-<uuid>\"; write numbers such as 0, or \"GPU-\" and the 32 digits \
             of a UUID as `nvidia-smi -L` shows them",
        ),
        (
            "copy",
            "devices = [-1]",
            "must be a list of at most 256 numbers of devices or \"GPU-<uuid>\"; write numbers such as 0, or \"GPU-\" and the 32 digits \
             of a UUID as `nvidia-smi -L` shows them",
        ),
        ("copy", "cache_dir = 3", "must be the path of a directory; write \"/var/cache/terrace/kernels\""),
        // Keys that are not known.
        ("primary", "polcy = \"lru\"", "is no key of [primary]; write policy"),
        ("primary", "pin_share = 0.5", "is no key of [primary]; write it under [limits]"),
        ("primary", "queue_depth = 3", "is no key of [primary]; write it under a [[tier]]"),
        ("primary", "colour = \"red\"", "is no key of [primary]; remove it"),
        ("tier", "path = [\"/y\"]", "is no key of a tier of type \"nvme\"; write paths"),
        ("tier", "policy = \"lru\"", "is no key of a tier of type \"nvme\"; write it under [primary]"),
    ] {
        let place = |name: &str| if name == table { format!("{line}\n") } else { String::new() };
        let others: String = ["geometry", "namespace", "admission", "limits", "deadlines", "breaker", "copy"]
            .iter()
            .map(|name| format!("[{name}]\n{}", place(name)))
            .collect();
        let text = format!(
            "[primary]\ncapacity = \"1GiB\"\n{}{others}[[tier]]\ntype = \"nvme\"\npaths = [\"/x\"]\ncapacity = \"1GiB\"\n{}",
            place("primary"),
            place("tier")
        );
        let faults = faults(&text);
        assert_eq!(faults.len(), 1, "{line}: {faults:?}");
        let fault = &faults[0];
        assert_eq!(format!("{}; {}", fault.bound, fault.fix), want, "{line}");
        // Where it is told is where it is written, and it shows what is written.
        let there = text.lines().nth(fault.line.unwrap_or(0) - 1).unwrap_or("");
        let (key, value) = there.split_once(" = ").unwrap_or(("", ""));
        assert!(fault.key.ends_with(&format!(".{key}")), "{line}: {fault:?}");
        assert_eq!(fault.value.trim_end_matches("..."), value.chars().take(60).collect::<String>(), "{line}");
    }
}

/// A whole file, and all that is told of it.
#[test]
fn files() {
    let nvme = |rest: &str| format!("[primary]\nblocks = 9\n[[tier]]\ntype = \"nvme\"\ncapacity = \"1GiB\"\n{rest}");
    let block = "[geometry]\nblock_bytes = 4096\n";
    for (text, want) in [
        ("".to_owned(), vec!["1: primary.capacity: must be written, or blocks in its place; write capacity = \"64GiB\" under [primary]"]),
        (
            "primary = 3".to_owned(),
            vec![
                "1: primary = 3: must be a table; write [primary] on a line of its own, its keys below",
                "1: primary.capacity: must be written, or blocks in its place; write capacity = \"64GiB\" under [primary]",
            ],
        ),
        (
            "capacity = 3\n[prmary]\n[primary]\nblocks = 3\n[serve]\nsocket = 4".to_owned(),
            vec![
                "1: capacity = 3: is no table of the configuration; write it under [primary]",
                "2: prmary: is no table of the configuration; write primary",
                "5: serve: is no table of the configuration; write server",
            ],
        ),
        // Sizes of the primary.
        (
            "[primary]\ncapacity = \"2047KiB\"".to_owned(),
            vec!["2: primary.capacity = \"2047KiB\": must hold at least one slot (geometry.block_bytes rounded up to 4KiB); write at least \"2MiB\""],
        ),
        (
            format!("[primary]\ncapacity = \"64TiB\"\n{block}"),
            vec!["2: primary.capacity = \"64TiB\": must hold at most 2147483648 blocks of 4KiB; write at most \"8TiB\", or raise geometry.block_bytes"],
        ),
        (
            "[primary]\nblocks = 2147483648".to_owned(),
            vec!["2: primary.blocks = 2147483648: must take at most 64TiB in slots of 2MiB; write at most 33554432"],
        ),
        (
            "[primary]\nblocks = 4294967296".to_owned(),
            vec!["2: primary.blocks = 4294967296: must be a whole number from 1 to 2147483648; write at most 2147483648"],
        ),
        // A rule that reads a faulty key says nothing.
        (
            "[primary]\ncapacity = \"1KiB\"\n[geometry]\nblock_bytes = -3".to_owned(),
            vec!["4: geometry.block_bytes = -3: must be a size from 1B to 1GiB; write at least \"1B\""],
        ),
        // Sizes of tiers.
        (
            "[primary]\nblocks = 9\n[[tier]]\ntype = \"memory\"\ncapacity = \"1MiB\"".to_owned(),
            vec!["5: tier[0].capacity = \"1MiB\": must hold at least one block (geometry.block_bytes); write at least \"2MiB\""],
        ),
        (
            "[primary]\nblocks = 9\n[[tier]]\ntype = \"nvme\"\npaths = [\"/x\"]\ncapacity = \"2MiB\"".to_owned(),
            vec![
                "6: tier[0].capacity = \"2MiB\": must hold at least one block (geometry.block_bytes rounded up to 4KiB, and a footer of 4KiB); write at least \"2052KiB\"",
            ],
        ),
        (
            format!("[primary]\nblocks = 9\n{block}[[tier]]\ntype = \"memory\"\ncapacity = \"9TiB\""),
            vec!["7: tier[0].capacity = \"9TiB\": must hold at most 2147483648 blocks of 4KiB; write at most \"8TiB\", or raise geometry.block_bytes"],
        ),
        (
            "[primary]\nblocks = 9\n[geometry]\nblock_bytes = \"1GiB\"\n[[tier]]\ntype = \"memory\"\nblocks = 2_000_000_000".to_owned(),
            vec!["7: tier[0].blocks = 2_000_000_000: must take at most 1024PiB in blocks of 1GiB; write at most 1073741824"],
        ),
        // Tiers as such.
        (
            "[primary]\nblocks = 9\n[tier]\ntype = \"memory\"".to_owned(),
            vec!["3: tier: must be an array of tables; write [[tier]] in front of the keys of each tier"],
        ),
        (
            "tier = [3]\n[primary]\nblocks = 9".to_owned(),
            vec!["1: tier[0] = 3: must be a table; write [[tier]] in front of the keys of each tier"],
        ),
        (
            "[primary]\nblocks = 9\n\n[[tier]]\nblocks = 9\n".to_owned(),
            vec!["4: tier[0].type: must be written; write type = \"nvme\", type = \"memory\" or type = \"object\""],
        ),
        (
            "[primary]\nblocks = 9\n[[tier]]\ntype = \"bucket\"\nblocks = 9\nurl = \"s3://abc\"\npassword = \"pw\"".to_owned(),
            vec![
                "4: tier[0].type = \"bucket\": must be one of \"nvme\", \"memory\", \"object\"; write \"nvme\"",
                SECRET_IN_LINE_7,
            ],
        ),
        (
            "[primary]\nblocks = 9\n[[tier]]\ntype = \"nvme\"\n[[tier]]\ntype = \"memory\"\npaths = [\"/x\"]\nblocks = 9".to_owned(),
            vec![
                "3: tier[0].capacity: must be written, or blocks in its place; write capacity = \"2TiB\" under [[tier]]",
                "3: tier[0].paths: must be written; write paths = [\"/mnt/nvme0/terrace\"] under [[tier]]",
                "7: tier[1].paths = [\"/x\"]: is no key of a tier of type \"memory\"; remove it, or change the type",
            ],
        ),
        // Directories.
        (nvme("paths = []"), vec!["6: tier[0].paths = []: must be a list of 1 to 64 directories; write [\"/mnt/nvme0/terrace\"]"]),
        (nvme("paths = \"/x\""), vec!["6: tier[0].paths = \"/x\": must be a list of 1 to 64 directories; write [\"/x\"]"]),
        (
            nvme("paths = [\"/x\", \"\"]"),
            vec!["6: tier[0].paths = [\"/x\", \"\"]: must be a list of 1 to 64 directories; name the directory: \"\" is none"],
        ),
        (
            nvme("paths = [\"/x\",\n\"/y\",\n\"/x/./\"]\n[[tier]]\ntype = \"nvme\"\ncapacity = \"1GiB\"\npaths = [\"/z\", \"/y/deep\", \"/\"]"),
            vec![
                "8: tier[0].paths[2] = \"/x/./\": must not be tier[0].paths[0] once more; write a directory of its own, on another disk if it is to add speed",
                "12: tier[1].paths[1] = \"/y/deep\": must not lie inside or around tier[0].paths[1], \"/y\"; write a directory of its own, on another disk if it is to add speed",
                "12: tier[1].paths[2] = \"/\": must not lie inside or around tier[0].paths[0], \"/x\"; write a directory of its own, on another disk if it is to add speed",
            ],
        ),
        // Names.
        (
            "[primary]\nblocks = 9\n[[tier]]\ntype = \"memory\"\nblocks = 9\nname = \"a\"\n[[tier]]\ntype = \"memory\"\nblocks = 9\nname = \"a\"".to_owned(),
            vec!["10: tier[1].name = \"a\": must not be \"a\", the name of tier[0]; write another name"],
        ),
        (
            "[primary]\nblocks = 9\n[[tier]]\ntype = \"memory\"\nblocks = 9\nname = \"memory-2\"\n[[tier]]\ntype = \"memory\"\nblocks = 9".to_owned(),
            vec!["7: tier[1].name: must not be \"memory-2\", the name of tier[0]; write another name"],
        ),
        // TOML.
        (
            "[primary]\ncapacity = 64GiB\npolicy = lur".to_owned(),
            vec![
                "2: capacity = 64GiB: string values must be quoted, expected literal string; write \"64GiB\"",
                "3: policy = lur: string values must be quoted, expected literal string; write \"lur\"",
                "3: primary.policy = lur: must be one of \"lru\", \"arc\"; write \"lru\"",
            ],
        ),
        (
            "[primary\nblocks = 3\n[limits]\nevents = 0".to_owned(),
            vec![
                "1: [primary: unclosed table, expected `]`; correct the TOML here",
                "4: limits.events = 0: must be a whole number from 1 to 16777216; write at least 1",
            ],
        ),
        ("[primary]\nblocks = 3\nblocks = 4".to_owned(), vec!["3: blocks = 4: duplicate key; correct the TOML here"]),
    ] {
        assert_eq!(told(&text), want, "\n{text}");
    }
}

/// What is written beside `type` and `capacity` of an object tier, and what is told of it.
#[test]
fn object_tiers() {
    let secret = "credentials come from the environment, a file or the provider chain: see the keys credentials, env_prefix and \
                  credentials_file of a [[tier]] of type \"object\"";
    let s3 = |rest: &str| format!("url = \"s3://abc/x\"\n{rest}");
    let url = "must be s3://BUCKET/PREFIX or file:///DIRECTORY";
    let server = "must be http:// or https://, a host and perhaps a port";
    let beside = "must not stand beside a url of a directory; remove it, or write an s3:// url";
    for (lines, want) in [
        (s3(""), vec![]),
        ("url = \"file:///mnt/shared\"\ncredentials = \"none\"".to_owned(), vec![]),
        // Places.
        (
            "linger = \"1s\"".to_owned(),
            vec!["3: tier[0].url: must be written; write url = \"s3://bucket/terrace\" under [[tier]]".to_owned()],
        ),
        (
            "url = \"\"".to_owned(),
            vec![format!("6: tier[0].url = \"\": {url}; write url = \"s3://bucket/terrace\" under [[tier]]")],
        ),
        (
            "url = \"gs://abc/x\"".to_owned(),
            vec![format!(
                "6: tier[0].url = \"gs://abc/x\": {url}; write \"s3://bucket/terrace\", for other servers than AWS with endpoint = \
                 \"https://host:port\""
            )],
        ),
        (
            "url = \"s3://Abc\"".to_owned(),
            vec![format!(
                "6: tier[0].url = \"s3://Abc\": {url}; name the bucket by 3 to 63 lower-case letters, digits, '-' or '.', the first and the \
                 last no sign"
            )],
        ),
        (
            "url = \"s3://abc/x y\"".to_owned(),
            vec![format!(
                "6: tier[0].url = \"s3://abc/x y\": {url}; use letters, digits, '.', '_', '-' and '/' in the prefix alone"
            )],
        ),
        (
            "url = \"s3://abc/../x\"".to_owned(),
            vec![format!(
                "6: tier[0].url = \"s3://abc/../x\": {url}; remove doubled slashes, '.' and '..' from the prefix"
            )],
        ),
        (
            "url = \"file://mnt\"".to_owned(),
            vec![format!(
                "6: tier[0].url = \"file://mnt\": {url}; write three slashes and an absolute directory: \"file:///mnt/shared/terrace\""
            )],
        ),
        (
            s3("endpoint = \"host:80\""),
            vec![format!(
                "7: tier[0].endpoint = \"host:80\": {server}; write \"https://host:port\", or http:// for a server without TLS"
            )],
        ),
        (
            s3("endpoint = \"http://host:x\""),
            vec![format!(
                "7: tier[0].endpoint = \"http://host:x\": {server}; write a host and a port of 1 to 65535: \"https://host:port\""
            )],
        ),
        (
            s3("endpoint = \"http://host/abc\""),
            vec![format!(
                "7: tier[0].endpoint = \"http://host/abc\": {server}; remove what follows the host and its port; bucket and prefix stand in url"
            )],
        ),
        (
            "url = \"file:///x\"\nendpoint = \"http://host\"\nca_file = \"/ca\"\ncredentials_file = \"/c\"\ncredentials = \"file\"".to_owned(),
            vec![
                format!("7: tier[0].endpoint = \"http://host\": {beside}"),
                format!("8: tier[0].ca_file = \"/ca\": {beside}"),
                format!("9: tier[0].credentials_file = \"/c\": {beside}"),
                format!("10: tier[0].credentials = \"file\": {beside}"),
            ],
        ),
        // Credentials, none of which is told again.
        (
            s3("credentials = \"file\""),
            vec![
                "7: tier[0].credentials = \"file\": must have a credentials_file; write credentials_file = \
                 \"/etc/terrace/credentials\" under this [[tier]]"
                    .to_owned(),
            ],
        ),
        (
            s3("credentials = \"environment\"\ncredentials_file = \"/c\""),
            vec![
                "8: tier[0].credentials_file = \"/c\": must not stand beside credentials = \"environment\"; remove it, or write \
                 credentials = \"chain\" or \"file\""
                    .to_owned(),
            ],
        ),
        (
            s3("access_key_id = \"AKIA\"\nAWS_SECRET_ACCESS_KEY = \"hidden\"\npassword = [\"hidden\"]"),
            ["7: tier[0].access_key_id", "8: tier[0].AWS_SECRET_ACCESS_KEY", "9: tier[0].password"]
                .map(|at| format!("{at} = (not shown): is no key of a tier of type \"object\"; remove it: {secret}"))
                .to_vec(),
        ),
        (
            s3("secret_access_key = hidden"),
            vec![
                format!("7: (not shown): string values must be quoted, expected literal string; remove it: {secret}"),
                format!("7: tier[0].secret_access_key = (not shown): is no key of a tier of type \"object\"; remove it: {secret}"),
            ],
        ),
        (
            "url = \"s3://key:hidden@abc/x\"\nendpoint = \"https://key:hidden@host\"".to_owned(),
            vec![
                format!("6: tier[0].url = (not shown): {url}; remove it: {secret}"),
                format!("7: tier[0].endpoint = (not shown): {server}; remove it: {secret}"),
            ],
        ),
        // Sizes.
        (
            s3("segment_bytes = \"1MiB\"\nstaging_bytes = \"2MiB\""),
            vec![
                "8: tier[0].staging_bytes = \"2MiB\": must hold one block of 2MiB, with its header of 256B and 4KiB for its segment; \
                 write at least \"3MiB\""
                    .to_owned(),
            ],
        ),
        (
            s3("[geometry]\nblock_bytes = \"1GiB\""),
            vec![
                "3: tier[0].staging_bytes: must hold one block of 1GiB, with its header of 256B and 4KiB for its segment; \
                 write at least \"1025MiB\""
                    .to_owned(),
                "5: tier[0].capacity = \"1GiB\": must hold at least one block (geometry.block_bytes and a header of 256B); write at least \
                 \"1073742080B\""
                    .to_owned(),
            ],
        ),
        (
            s3("staging_bytes = \"3MiB\""),
            vec![
                "7: tier[0].staging_bytes = \"3MiB\": must be at least segment_bytes, 4MiB; write at least \"4MiB\"".to_owned(),
            ],
        ),
        (
            s3("segment_bytes = \"1GiB\""),
            vec![
                "7: tier[0].segment_bytes = \"1GiB\": must be at most staging_bytes, 512MiB; write at most \"512MiB\", or a \
                 staging_bytes of at least \"1GiB\" too"
                    .to_owned(),
            ],
        ),
        (
            s3("part_bytes = \"4MiB\""),
            vec!["7: tier[0].part_bytes = \"4MiB\": must be a size from 5MiB to 1GiB; write at least \"5MiB\"".to_owned()],
        ),
        (
            s3("low_watermark = 0.96"),
            vec!["7: tier[0].low_watermark = 0.96: must be at most high_watermark, 0.95; write at most 0.95".to_owned()],
        ),
        (
            s3("low_watermark = 0.0\nhigh_watermark = 0.0001"),
            vec![
                "8: tier[0].high_watermark = 0.0001: must leave room for one block of 2097408B in the 1GiB of the tier; raise it, or the \
                 size of the tier"
                    .to_owned(),
            ],
        ),
        // Times.
        (
            s3("fold_interval = \"31s\""),
            vec![
                "7: tier[0].fold_interval = \"31s\": must be at most fold_interval_max, 30s; write at most \"30s\", or a \
                 fold_interval_max of at least \"31s\" too"
                    .to_owned(),
            ],
        ),
        (
            s3("lease = \"2s\""),
            vec!["7: tier[0].lease = \"2s\": must be a duration from 3s to 1d; write at least \"3s\"".to_owned()],
        ),
        (
            s3("orphan_age = \"9m\""),
            vec!["7: tier[0].orphan_age = \"9m\": must be a duration from 10m to 3650d; write at least \"10m\"".to_owned()],
        ),
        (
            s3("max_age = \"3651d\"\nlog_retention = 30"),
            vec![
                "7: tier[0].max_age = \"3651d\": must be a duration from 1s to 3650d; write at most \"3650d\"".to_owned(),
                "8: tier[0].log_retention = 30: must be a duration from 1m to 3650d; write the unit: \"30s\" or \"30ms\"".to_owned(),
            ],
        ),
        (
            s3("log_retention = \"80s\"\nfold_interval_max = \"41s\""),
            vec![
                "7: tier[0].log_retention = \"80s\": must be at least twice fold_interval_max, 41s; write at least \"82s\", or a \
                 shorter fold_interval_max"
                    .to_owned(),
            ],
        ),
        (
            s3("fold_interval_max = \"31m\""),
            vec![
                "7: tier[0].fold_interval_max = \"31m\": must be at most half of log_retention, 1h; write at most \"30m\", or raise \
                 log_retention"
                    .to_owned(),
            ],
        ),
        // Words and names.
        (
            s3("collector = \"nver\"\nenv_prefix = \"A B\"\nregion = \"\""),
            vec![
                "7: tier[0].collector = \"nver\": must be one of \"auto\", \"always\", \"never\"; write \"never\"".to_owned(),
                "8: tier[0].env_prefix = \"A B\": must be a string of 1 to 64 letters, digits, '-', '_' or '.'; write \"AWS_\"".to_owned(),
                "9: tier[0].region = \"\": must be a string of 1 to 64 letters, digits, '-', '_' or '.'; write \"us-east-1\"".to_owned(),
            ],
        ),
        (
            s3("paths = [\"/x\"]"),
            vec![
                "7: tier[0].paths = [\"/x\"]: is no key of a tier of type \"object\"; remove it, or change the type".to_owned(),
            ],
        ),
        // Further tiers.
        (
            s3("[[tier]]\ntype = \"object\"\nblocks = 9\nurl = \"s3://abc/x/\""),
            vec![
                "10: tier[1].url = \"s3://abc/x/\": must not be tier[0].url once more; write a prefix of its own".to_owned(),
            ],
        ),
        (s3("[[tier]]\ntype = \"object\"\nblocks = 9\nurl = \"s3://abc/y\""), vec![]),
        (s3("[[tier]]\ntype = \"object\"\nblocks = 9\nurl = \"s3://abc/x\"\nendpoint = \"http://other\""), vec![]),
        (
            "url = \"file:///x/\"\n[[tier]]\ntype = \"nvme\"\nblocks = 9\npaths = [\"/x/nvme\"]".to_owned(),
            vec![
                "10: tier[1].paths[0] = \"/x/nvme\": must not lie inside or around tier[0].url, \"/x\"; write a directory of its own, on \
                 another disk if it is to add speed"
                    .to_owned(),
            ],
        ),
    ] {
        let text = format!("[primary]\nblocks = 9\n[[tier]]\ntype = \"object\"\ncapacity = \"1GiB\"\n{lines}");
        assert_eq!(told(&text), want, "\n{text}");
    }
}

#[test]
fn one_report_tells_all_faults_in_order() {
    let text = "\
[primary]
capacity = \"64GB\"
polcy = \"lru\"

[limits]
pin_share = 1.5

[[tier]]
type = \"nvme\"
capacity = \"2TiB\"
low_watermark = 1.0
high_watermark = 0.5
";
    let error = Config::parse(text, "my/terrace.toml").map_err(|error| error.to_string());
    let want = "\
my/terrace.toml: 5 faults
my/terrace.toml:2: primary.capacity = \"64GB\": must be a size from 1B to 64TiB; \"GB\" is ambiguous: write \"64GiB\", or 64000000000 (bytes) for the decimal unit
my/terrace.toml:3: primary.polcy = \"lru\": is no key of [primary]; write policy
my/terrace.toml:6: limits.pin_share = 1.5: must be a number from 0.0 to 1.0; write at most 1.0
my/terrace.toml:8: tier[0].paths: must be written; write paths = [\"/mnt/nvme0/terrace\"] under [[tier]]
my/terrace.toml:11: tier[0].low_watermark = 1.0: must be at most high_watermark, 0.5; write at most 0.5";
    assert_eq!(error, Err(want.to_owned()));
}

#[test]
fn too_many_tiers_and_too_much_text() {
    let tier = "[[tier]]\ntype = \"memory\"\nblocks = 1\n";
    let tiers = |n| format!("[primary]\nblocks = 9\n{}", tier.repeat(n));
    assert_eq!(told(&tiers(16)), Vec::<String>::new());
    assert_eq!(told(&tiers(17)), ["51: tier[16]: must be one of at most 16 tiers; remove tiers"]);
    assert_eq!(told(&tiers(999)).len(), 1);
    let long = format!("[primary]\nblocks = 9\n#{}", " ".repeat(1 << 20));
    assert_eq!(told(&long), ["0: must have at most 1048576 bytes; check that this is the right file"]);
}

#[test]
fn files_that_cannot_be_read() {
    let dir = tempfile::tempdir().expect("a directory for the test");
    let missing = dir.path().join("missing.toml");
    let error = Config::load(&missing).expect_err("there is no such file");
    assert!(matches!(&error, ConfigError::Read { path, .. } if *path == missing), "{error:?}");
    assert_eq!(error.faults(), []);

    let file = dir.path().join("terrace.toml");
    std::fs::write(&file, b"[primary]\nblocks = 9\n# \xff\n").expect("written");
    let error = Config::load(&file).expect_err("it is no UTF-8");
    assert_eq!(error.faults().iter().map(|fault| fault.line).collect::<Vec<_>>(), [Some(3)]);

    std::fs::write(&file, vec![b'#'; 2 << 20]).expect("written");
    assert_eq!(Config::load(&file).expect_err("it is too long").faults().len(), 1);

    std::fs::write(&file, "[primary]\nblocks = 9\n").expect("written");
    assert_eq!(Config::load(&file).expect("it is good").primary.blocks, 9);
}

#[test]
fn changes_after_parsing_are_validated_without_lines() {
    let mut config = Config::parse("[primary]\nblocks = 9", "t.toml").expect("good");
    assert!(config.validate("the command line").is_ok());
    config.primary.blocks = 0;
    config.limits.pin_share = 2.0;
    let told = config.validate("the command line").map_err(|error| error.to_string());
    let want = "\
the command line: 2 faults
the command line: primary.blocks = 0: must be a whole number from 1 to 2147483648; write at least 1
the command line: limits.pin_share = 2.0: must be a number from 0.0 to 1.0; write at most 1.0";
    assert_eq!(told, Err(want.to_owned()));
}

/// What is written under `[[tenant]]`, and what is told of it.
#[test]
fn tenants() {
    let secret =
        "remove it: a key stands in a file of its own, or is printed by a command: write key_files or key_commands";
    let keys = "[\"a\", \"b\", \"c\", \"d\", \"e\"]";
    for (lines, want) in [
        ("name = \"acme\"".to_owned(), vec![]),
        ("name = \"acme\"\nkey_commands = [\"pass acme\"]\nencrypt = true".to_owned(), vec![]),
        (
            "encrypt = true".to_owned(),
            vec![
                "3: tenant[0].name: must be the name of a tenant; write name = \"acme\"".to_owned(),
                "4: tenant[0].encrypt = true: must not be true without a key; write key_files = [\"/etc/terrace/acme.key\"]"
                    .to_owned(),
            ],
        ),
        (
            "name = \"acme\"\n[[tenant]]\nname = \"acme\"".to_owned(),
            vec![
                "6: tenant[1].name = \"acme\": must be named once; put its keys together under one [[tenant]]".to_owned(),
            ],
        ),
        (
            "name = \"acme\"\nkey_files = [\"a\"]\nkey_commands = [\"b\"]".to_owned(),
            vec![
                "6: tenant[0].key_commands = [\"b\"]: must not stand beside key_files; write the files as commands: \"cat \
                 /etc/terrace/acme.key\""
                    .to_owned(),
            ],
        ),
        (
            format!("name = \"acme\"\nkey_files = {keys}"),
            vec![format!("5: tenant[0].key_files = {keys}: must be at most 4, none empty; remove the last")],
        ),
        (
            "name = \"acme\"\nkey = \"hunter2\"".to_owned(),
            vec![format!("5: tenant[0].key = (not shown): is no key of a tenant; {secret}")],
        ),
        (
            "name = \"acme\"\nkeyfiles = \"x\"".to_owned(),
            vec!["5: tenant[0].keyfiles = \"x\": is no key of a tenant; write key_files".to_owned()],
        ),
        (
            "name = \"a\"\nguaranteed = 0.5\nmaximum = 0.25".to_owned(),
            vec!["5: tenant[0].guaranteed = 0.5: must be at most maximum, 0.25; write at most 0.25".to_owned()],
        ),
        (
            "name = \"a\"\nguaranteed = 0.5\n[[tenant]]\nname = \"b\"\nguaranteed = 0.5".to_owned(),
            vec![
                "8: tenant[1].guaranteed = 0.5: must have a place of its own, and server.pools is 1; raise [server] pools"
                    .to_owned(),
            ],
        ),
        (
            "name = \"a\"\nguaranteed = 0.75\n[[tenant]]\nname = \"b\"\nguaranteed = 0.5\n[server]\npools = 2".to_owned(),
            vec![
                "8: tenant[1].guaranteed = 0.5: must leave all of them at most 1.0 together: they are 1.250; lower it by 0.250"
                    .to_owned(),
            ],
        ),
        (
            "name = \"a\"\nguaranteed = 0.5\n[[tenant]]\nname = \"*\"\nguaranteed = 0.5\n[server]\npools = 3".to_owned(),
            vec![
                "8: tenant[1].guaranteed = 0.5: must fit 2 times, for server.pools is 3, into 0.500; write at most 0.250"
                    .to_owned(),
            ],
        ),
    ] {
        let text = format!("[primary]\nblocks = 9\n[[tenant]]\n{lines}\n");
        assert_eq!(told(&text), want, "\n{text}");
    }
}
