use clap::Parser;
use proptest::prelude::*;
use vram_pool::Placement;

use super::*;

fn args(options: &[&str]) -> Args {
    Args::try_parse_from(std::iter::once("vramd").chain(options.iter().copied())).unwrap()
}

fn from_options(options: &[&str]) -> Result<Config, ConfigError> {
    Config::load(args(options))
}

fn from_both(toml: &str, options: &[&str]) -> Result<Config, ConfigError> {
    Config::merge(args(options), ConfigFile::parse(Path::new("vramd.toml"), toml.as_bytes())?)
}

/// The first line of a message is all of it.
fn message(result: Result<Config, ConfigError>) -> String {
    let message = result.unwrap_err().to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

#[test]
fn config_one_slice_takes_the_defaults() {
    let config = from_options(&["--slice", "tenant=2GiB"]).unwrap();

    assert_eq!(
        config,
        Config {
            gpu: GpuBackend::Sim("4x1GiB".into()),
            gpu_is_default: true,
            shard: ByteSize::mib(64),
            socket_dir: "/run/vram".into(),
            control: vram_control_api::DEFAULT_CONTROL_SOCKET.into(),
            control_group: None,
            socket_group: None,
            virtio_id: 37,
            log_level: LogLevel::Info,
            slices: vec![SliceConfig {
                name: "tenant".into(),
                limit: ByteSize::gib(2),
                guarantee: ByteSize(0),
                placement: Placement::Spill,
                request_queues: 1,
                home: None,
                socket: "/run/vram/tenant.sock".into(),
                group: None,
            }],
            tiers: Vec::new(),
        }
    );
}

#[test]
fn config_file_and_options_with_the_same_content_are_equal() {
    let toml = r#"
        socket_dir = "/tmp/v"
        socket_group = "root"
        control = "/tmp/c.sock"
        control_group = "4"
        virtio_id = 63
        shard = "32MiB"
        log_level = "debug"
        [gpu]
        backend = "sim"
        spec = "2x1GiB,link=pix"
        [[slice]]
        name = "a"
        limit = 1073741824
        [[slice]]
        name = "b"
        limit = "1.5GiB"
        guarantee = "512MiB"
        placement = "spread"
        queues = 64
        home = 1
        socket = "/tmp/b.sock"
        group = "5"
    "#;
    let options = [
        "--socket-dir=/tmp/v",
        "--socket-group=root",
        "--control=/tmp/c.sock",
        "--control-group=4",
        "--virtio-id=63",
        "--shard=32MiB",
        "--log-level=debug",
        "--gpu=sim:2x1GiB,link=pix",
        "--slice=a=1GiB",
        "--slice=b=1.5GiB,guarantee=512MiB,placement=spread,queues=64,home=1,socket=/tmp/b.sock,group=5",
    ];

    let from_file = from_both(toml, &[]).unwrap();

    assert_eq!(from_file, from_options(&options).unwrap());
    assert!(!from_file.gpu_is_default);
    assert_eq!(from_file.slices[0].socket, Path::new("/tmp/v/a.sock"));
    let groups = [from_file.slices[0].group, from_file.slices[1].group, from_file.control_group];
    assert_eq!(groups.map(|group| group.map(Gid::as_raw)), [Some(0), Some(5), Some(4)]);
}

#[test]
fn config_options_fill_in_what_the_file_leaves_out() {
    let toml = "log_level = \"warn\"\n[[slice]]\nname = \"a\"\nlimit = \"1GiB\"";

    let config = from_both(toml, &["--gpu=cuda", "--slice=b=1GiB", "--log-level=trace"]).unwrap();

    assert_eq!(config.gpu, GpuBackend::Cuda);
    assert_eq!(config.log_level, LogLevel::Trace);
    let names: Vec<_> = config.slices.iter().map(|slice| slice.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn config_relative_paths_of_options_become_absolute() {
    let config = from_options(&["--slice=a=1GiB,socket=a.sock", "--socket-dir=x", "--control=./c"]).unwrap();

    let here = std::env::current_dir().unwrap();
    assert_eq!(config.slices[0].socket, here.join("a.sock"));
    assert_eq!(config.socket_dir, here.join("x"));
    assert_eq!(config.control, here.join("c"));
}

#[test]
fn config_wrong_options_are_named() {
    let long_name = format!("--slice={}=1GiB", "x".repeat(32));
    let long_dir = format!("--socket-dir=/{}", "x".repeat(110));
    let cases: &[(&[&str], &str)] = &[
        (&[], "No slice is defined: add --slice NAME=LIMIT"),
        (
            &["--slice==1GiB"],
            "--slice: The slice name \"\" must be 1 to 31 of a-z, 0-9 and -, and not begin with -",
        ),
        (&["--slice=-a=1GiB"], "--slice: The slice name \"-a\" must be"),
        (&["--slice=A=1GiB"], "--slice: The slice name \"A\" must be"),
        (&["--slice=a b=1GiB"], "--slice: The slice name \"a b\" must be"),
        (&["--slice=../a=1GiB"], "--slice: The slice name \"../a\" must be"),
        (&["--slice=é=1GiB"], "--slice: The slice name \"é\" must be"),
        (&[&long_name], "must be 1 to 31"),
        (&["--slice=a=0"], "--slice: The limit of slice a must be more than 0 and at most 128TiB, not 0B"),
        (
            &["--slice=a=129TiB"],
            "--slice: The limit of slice a must be more than 0 and at most 128TiB, not 129TiB",
        ),
        (
            &["--slice=a=1GiB,guarantee=0"],
            "--slice: The guarantee of slice a must be more than 0; leave it out",
        ),
        (
            &["--slice=a=1GiB,guarantee=1025MiB"],
            "--slice: The guarantee of slice a, 1025MiB, must not be more than its limit, 1GiB",
        ),
        (&["--slice=a=1GiB,queues=0"], "--slice: The queues of slice a must be 1 to 64, not 0"),
        (&["--slice=a=1GiB,queues=65"], "--slice: The queues of slice a must be 1 to 64, not 65"),
        (&["--slice=a=1GiB,queues=-1"], "--slice: The queues of slice a must be 1 to 64, not -1"),
        (
            &["--slice=a=1GiB,home=-1"],
            "--slice: The home of slice a must be the number of a GPU, from 0, not -1",
        ),
        (
            &["--slice=a=1GiB,placement=near"],
            "--slice: The placement of slice a must be local, spill, spread or pack, not \"near\"",
        ),
        (&["--slice=a=1GiB,home=65536"], "--slice: The home of slice a must be the number of a GPU"),
        (&["--slice=a=1GiB", "--slice=a=2GiB"], "--slice: The slice a is already defined (--slice)"),
        (
            &["--slice=a=1GiB,socket=/s", "--slice=b=2GiB,socket=/s"],
            "--slice: The socket of slice b is already that of slice a: /s",
        ),
        (
            &["--slice=control=1GiB"],
            "--slice: The socket of slice control is already that of the operator API: /run/vram/control.sock",
        ),
        (
            &["--slice=a=1GiB", "--shard=0"],
            "--shard: shard must be a multiple of 2MiB from 2MiB to 1GiB, not 0B",
        ),
        (
            &["--slice=a=1GiB", "--shard=3MiB"],
            "--shard: shard must be a multiple of 2MiB from 2MiB to 1GiB, not 3MiB",
        ),
        (&["--slice=a=1GiB", "--shard=1026MiB"], "not 1026MiB"),
        (&["--slice=a=1GiB", "--virtio-id=0"], "--virtio-id: virtio-id must be 1 to 63, not 0"),
        (&["--slice=a=1GiB", "--virtio-id=64"], "--virtio-id: virtio-id must be 1 to 63, not 64"),
        (&["--slice=a=1GiB", "--virtio-id=-1"], "--virtio-id: virtio-id must be 1 to 63, not -1"),
        (
            &["--slice=a=1GiB", "--control=/a\nb"],
            "--control: control must be UTF-8 without control characters",
        ),
        (
            &["--slice=a=1GiB", "--socket-dir=/a,b"],
            "default: control must not contain any of ,\"[], which mean",
        ),
        (
            &["--slice=a=1GiB", "--socket-group=no such"],
            "--socket-group: socket-group: There is no group \"no such\"",
        ),
        (
            &["--slice=a=1GiB", "--control-group=-1"],
            "--control-group: control-group: There is no group \"-1\"",
        ),
        (
            &["--slice=a=1GiB,group=4294967295"],
            "--slice: The group of slice a: There is no group \"4294967295\"",
        ),
        (&["--slice=a=1GiB,socket=/[a]"], "--slice: The socket of slice a must not contain any of ,\"[]"),
        (&["--slice=a=1GiB", &long_dir], "default: control must be at most 107 bytes long, not 124"),
        (
            &["--slice=a=1GiB", &long_dir, "--control=/c"],
            "--slice: The socket of slice a must be at most 107 bytes",
        ),
    ];
    for (options, expected) in cases {
        let message = message(from_options(options));

        assert!(message.starts_with(expected) || message.contains(expected), "{options:?} gives {message}");
    }
}

#[test]
fn config_wrong_files_are_named_with_their_line() {
    let slice = "[[slice]]\nname = \"a\"\nlimit = \"1GiB\"\n";
    let cases: &[(&str, &str)] = &[
        ("", "No slice is defined"),
        ("slice = 3", "vramd.toml:1: invalid type: integer `3`, expected a sequence (in `slice = 3`)"),
        ("\n\nnonsense", "vramd.toml:3: "),
        ("[[slice]\nname = 1", "vramd.toml:1: "),
        ("shard = \"64MiB\"\nshard = \"64MiB\"", "vramd.toml:2: duplicate key"),
        ("shards = \"64MiB\"", "vramd.toml:1: unknown field `shards`, expected one of `gpu`, `shard`,"),
        ("\nshard = \"64MB i\"", "vramd.toml:2: \"64MB i\" is not a size: the unit must be B, KiB,"),
        ("\nshard = -5", "vramd.toml:2: \"-5\" is not a size: it is negative (in `shard = -5`)"),
        ("\nshard = 1.5", "vramd.toml:2: invalid type: floating point"),
        ("\nshard = \"1MiB\"", "vramd.toml:2: shard must be a multiple of 2MiB from 2MiB to 1GiB, not 1MiB"),
        ("virtio_id = 99", "vramd.toml:1: virtio-id must be 1 to 63, not 99"),
        ("virtio_id = 99999999999999999999", "vramd.toml:1: "),
        (
            "log_level = \"loud\"",
            "vramd.toml:1: unknown variant `loud`, expected one of `error`, `warn`, `info`,",
        ),
        ("socket_dir = \"run\"", "vramd.toml:1: socket-dir must be an absolute path, not \"run\""),
        ("control = \"\"", "vramd.toml:1: control must be an absolute path, not \"\""),
        ("[gpu]\nbackend = \"rocm\"", "vramd.toml:2: unknown variant `rocm`, expected `sim` or `cuda`"),
        ("[gpu]\nbackend = \"sim\"", "vramd.toml:1: gpu.spec must say which GPUs to simulate"),
        ("[gpu]\nbackend = \"cuda\"\nspec = \"1\"", "vramd.toml:3: gpu.spec is for the backend \"sim\" only"),
        ("[gpu]\nspec = \"4x1GiB\"", "vramd.toml:1: missing field `backend` (in `[gpu]`)"),
        (
            "[gpu]\nbackend = \"sim\"\nsize = 1",
            "vramd.toml:3: unknown field `size`, expected `backend` or `spec`",
        ),
        ("[[slice]]\nlimit = 1", "vramd.toml:1: missing field `name` (in `[[slice]]`)"),
        ("\n[[slice]]\nname = \"a\"", "vramd.toml:2: missing field `limit` (in `[[slice]]`)"),
        (
            "[[slice]]\nname = \"a\"\nlimt = 1",
            "vramd.toml:3: unknown field `limt`, expected one of `name`, `limit`,",
        ),
        ("[[slice]]\nname = \"A\"\nlimit = 1", "vramd.toml:2: The slice name \"A\" must be"),
        ("[[slice]]\nname = \"a\"\nlimit = 0", "vramd.toml:3: The limit of slice a must be more than 0"),
        (
            "[[slice]]\nname = \"a\"\nlimit = 1\nguarantee = 2",
            "vramd.toml:4: The guarantee of slice a, 2B, must not",
        ),
        (
            "[[slice]]\nname = \"a\"\nlimit = 1\nqueues = 70000",
            "vramd.toml:4: The queues of slice a must be 1 to 64",
        ),
        (
            "[[slice]]\nname = \"a\"\nlimit = 1\nplacement = \"Spill\"",
            "vramd.toml:4: The placement of slice a must be local, spill, spread or pack, not \"Spill\"",
        ),
        ("[[slice]]\nname = \"a\"\nlimit = 1\nhome = -1", "vramd.toml:4: The home of slice a must be"),
        ("[[slice]]\nname = \"a\"\nlimit = 1\nhome = \"gpu0\"", "vramd.toml:4: invalid type: string"),
        (
            "[[slice]]\nname = \"a\"\nlimit = 1\nsocket = \"s\"",
            "vramd.toml:4: The socket of slice a must be an absolute",
        ),
        (&slice.repeat(2), "vramd.toml:5: The slice a is already defined (vramd.toml:2)"),
    ];
    for (toml, expected) in cases {
        let message = message(from_both(toml, &[]));

        assert!(message.starts_with(expected), "{toml:?} gives {message}");
    }
}

#[test]
fn config_setting_in_both_places_is_refused() {
    let cases: &[(&str, &str, &str)] = &[
        (
            "[gpu]\nbackend = \"cuda\"",
            "--gpu=cuda",
            "vramd.toml:1: gpu is also given on the command line as --gpu",
        ),
        (
            "shard = \"64MiB\"",
            "--shard=64MiB",
            "vramd.toml:1: shard is also given on the command line as --shard",
        ),
        ("socket_dir = \"/r\"", "--socket-dir=/r", "vramd.toml:1: socket-dir is also given"),
        ("control = \"/c\"", "--control=/d", "vramd.toml:1: control is also given"),
        ("virtio_id = 37", "--virtio-id=37", "vramd.toml:1: virtio-id is also given"),
        (
            "[[slice]]\nname = \"a\"\nlimit = 1",
            "--slice=a=1",
            "--slice: The slice a is already defined (vramd.toml:2)",
        ),
    ];
    for (toml, option, expected) in cases {
        let message = message(from_both(toml, &[option]));

        assert!(message.starts_with(expected), "{toml:?} {option:?} gives {message}");
    }
}

#[test]
fn config_unreadable_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("binary");
    std::fs::write(&binary, b"# caf\xc3\xa9\n\n# caf\xe9\n").unwrap();
    let load = |path: &str| from_options(&["--config", path]);

    assert!(message(load("/nonexistent/vramd.toml")).contains("/nonexistent/vramd.toml"));
    assert!(message(load(folder.path().to_str().unwrap())).contains("Cannot read the configuration file"));
    assert!(message(load(binary.to_str().unwrap())).contains("binary:3: The file is not UTF-8 here"));
    assert!(message(load("/dev/zero")).contains("larger than 1MiB"));
}

/// Quadratic time takes minutes here.
#[test]
fn config_of_very_many_slices_is_read_in_seconds() {
    let slices = (0..20_000).map(|i| format!("[[slice]]\nname = \"a{i}\"\nlimit = 1\n"));
    let toml: String = slices.chain(["[[slice]]\nname = \"a0\"\nlimit = 1\n".to_owned()]).collect();
    let began = std::time::Instant::now();

    let message = message(from_both(&toml, &[]));

    assert_eq!(message, "vramd.toml:60002: The slice a0 is already defined (vramd.toml:2)");
    assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
}

/// The example, as it is and with every suggestion (`#name = value`) taken up.
#[test]
fn config_example_file_is_valid_with_all_its_suggestions() {
    let example = include_str!("../../../../configs/vramd.toml");
    let taken_up = |line: &str| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => rest.to_owned(),
        _ => line.to_owned(),
    };
    let full: Vec<String> = example.lines().map(taken_up).collect();

    let as_it_is = from_both(example, &[]).unwrap();
    let with_all = from_both(&full.join("\n"), &[]).unwrap();

    assert_eq!(as_it_is.shard, DEFAULT_SHARD);
    assert_eq!((as_it_is.socket_dir, as_it_is.control), (with_all.socket_dir, with_all.control));
    assert_eq!(with_all.virtio_id, DEFAULT_VIRTIO_ID);
    assert_eq!(with_all.slices.len(), 2);
    assert_eq!((as_it_is.tiers.len(), with_all.tiers.len()), (0, 4));
    assert!(with_all.slices.iter().any(|slice| slice.home.is_some() && slice.guarantee > ByteSize(0)));
}

proptest! {
    #[test]
    fn config_any_file_gives_one_line_or_a_config(text in "(\\PC|\n|\\[\\[slice\\]\\]\n|name = \"a\"\n){0,20}") {
        if let Err(error) = from_both(&text, &[]) {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }
}
