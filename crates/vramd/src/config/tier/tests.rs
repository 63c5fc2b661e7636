use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use clap::Parser;
use vram_control_api::ByteSize;
use vram_tier::{Codec, CodecChoice, TierKind};

use super::TierConfig;
use crate::args::Args;
use crate::config::file::ConfigFile;
use crate::config::{Config, ConfigError};

const SLICE: &str = "--slice=a=1GiB";

fn load(toml: &str, options: &[&str]) -> Result<Vec<TierConfig>, ConfigError> {
    let args = ["vramd", SLICE].into_iter().chain(options.iter().copied());
    let args = Args::try_parse_from(args).unwrap();
    Ok(Config::merge(args, ConfigFile::parse(Path::new("vramd.toml"), toml.as_bytes())?)?.tiers)
}

fn message(toml: &str, options: &[&str]) -> String {
    let error = anyhow::Error::new(load(toml, options).unwrap_err());
    format!("{error:#}")
}

fn options_file(folder: &Path, mode: u32, text: &[u8]) -> String {
    let path = folder.join(format!("options-{mode:o}-{}", text.len()));
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn tiers_of_file_and_options_with_the_same_content_are_equal() {
    let toml = r#"
        [[tier]]
        kind = "remote"
        url = "s3://bucket/prefix"
        size = "1TiB"
        encrypt = false
        timeout = 5
        codec = "zlib"
        level = 9
        chunk = "64KiB"
        [[tier]]
        kind = "host"
        size = 4294967296
        preallocate = true
        huge_pages = true
        [[tier]]
        kind = "compressed"
        size = "1GiB"
        min_ratio = 1.5
        codec = "zstd"
        level = -3
        chunk = 4096
        [[tier]]
        kind = "disk"
        size = "20GiB"
        dir = "/var/lib/vram"
        encrypt = false
        direct = false
        punch_holes = true
        codec = "none"
    "#;
    let options = [
        "--tier=host:4GiB,preallocate=true,huge_pages=true",
        "--tier=compressed:1GiB,min_ratio=1.5,codec=zstd,level=-3,chunk=4096",
        "--tier=disk:20GiB,dir=/var/lib/vram,encrypt=false,direct=false,punch_holes=true,codec=none",
        "--tier=remote:1TiB,url=s3://bucket/prefix,encrypt=false,timeout=5,codec=zlib,level=9,chunk=64KiB",
    ];

    let tiers = load(toml, &[]).unwrap();

    assert_eq!(tiers, load("", &options).unwrap());
    let kinds: Vec<_> = tiers.iter().map(TierConfig::kind).collect();
    assert_eq!(kinds, [TierKind::Host, TierKind::Compressed, TierKind::Disk, TierKind::Remote]);
    let [TierConfig::Host(host), TierConfig::Chunked(vram_tier::TierConfig::Compressed(compressed)), ..] =
        tiers.as_slice()
    else {
        panic!("{tiers:?}");
    };
    assert_eq!((host.bytes, host.slot_bytes), (4 << 30, 64 << 20));
    assert!(host.preallocate && host.huge_pages);
    assert_eq!((compressed.min_ratio, compressed.chunk_bytes), (1.5, 4096));
    assert_eq!((compressed.codec.choice, compressed.codec.level), (CodecChoice::Only(Codec::Zstd), Some(-3)));
}

#[test]
fn tiers_left_alone_take_the_defaults_of_their_stores() {
    let options = [
        "--tier=disk:1GiB,dir=/d",
        "--tier=remote:url=file:///r",
        "--tier=compressed:1GiB",
        "--tier=host:1GiB",
    ];

    let tiers = load("", &options).unwrap();

    let expected = [
        TierConfig::Host(vram_tier::HostConfig {
            bytes: 1 << 30,
            slot_bytes: 64 << 20,
            preallocate: false,
            huge_pages: false,
        }),
        TierConfig::Chunked(vram_tier::TierConfig::Compressed(vram_tier::CompressedConfig::new(Some(
            1 << 30,
        )))),
        TierConfig::Chunked(vram_tier::TierConfig::Disk(vram_tier::DiskConfig::new("/d", 1 << 30))),
        TierConfig::Chunked(vram_tier::TierConfig::Remote(vram_tier::RemoteConfig::new("file:///r"))),
    ];
    assert_eq!(tiers, expected);
}

#[test]
fn tiers_of_file_and_options_are_served_together() {
    let toml = "[[tier]]\nkind = \"disk\"\nsize = \"1GiB\"\ndir = \"/d\"";

    let tiers = load(toml, &["--tier=host:2MiB", "--shard=2MiB"]).unwrap();

    assert_eq!(tiers.len(), 2);
    assert!(matches!(&tiers[0], TierConfig::Host(host) if host.slot_bytes == 2 << 20));
}

#[test]
fn tiers_wrong_options_are_named() {
    let cases = [
        ("host:x", "--tier: The size of the host tier: \"x\" is not a size: write a number and a unit"),
        ("host:2G", "--tier: The size of the host tier: \"2G\" is not a size: the unit must be"),
        (
            "host:0",
            "--tier: The size of the host tier must be a size of more than 0 and at most 128TiB, not \"0\"",
        ),
        ("disk:129TiB,dir=/d", "--tier: The size of the disk tier must be a size of more than 0"),
        (
            "host:63MiB",
            "--tier: The host tier keeps whole shards: its size must be at least that of one, 64MiB, not 63MiB",
        ),
        ("host:preallocate=true", "--tier: The host tier needs a size, such as 4GiB"),
        ("compressed:codec=lz4", "--tier: The compressed tier needs a size, such as 4GiB"),
        ("disk:1GiB", "--tier: The disk tier needs a dir, such as /var/lib/vram"),
        ("disk:dir=/d", "--tier: The disk tier needs a size, such as 4GiB"),
        ("remote:1GiB", "--tier: The remote tier needs a url, such as s3://bucket/prefix"),
        (
            "host:1GiB,preallocate=yes",
            "--tier: The preallocate of the host tier must be true or false, not \"yes\"",
        ),
        (
            "host:1GiB,dir=/d",
            "--tier: A host tier has no field \"dir\"; its fields are size, preallocate, huge_pages",
        ),
        ("host:1GiB,kind=disk", "--tier: A host tier has no field \"kind\""),
        (
            "compressed:1GiB,encrypt=true",
            "--tier: A compressed tier has no field \"encrypt\"; its fields are size, min_ratio, codec, level, chunk",
        ),
        (
            "disk:1GiB,dir=/d,url=s3://b",
            "--tier: A disk tier has no field \"url\"; its fields are size, dir, encrypt, direct, punch_holes, codec, \
             level, chunk",
        ),
        (
            "remote:url=s3://b,dir=/d",
            "--tier: A remote tier has no field \"dir\"; its fields are size, url, encrypt, timeout, options, \
             options_file, codec, level, chunk",
        ),
        (
            "compressed:1GiB,min_ratio=0.9",
            "--tier: The min_ratio of the compressed tier must be a number from 1 to 100, not \"0.9\"",
        ),
        ("compressed:1GiB,min_ratio=NaN", "--tier: The min_ratio of the compressed tier must be a number"),
        ("compressed:1GiB,min_ratio=inf", "--tier: The min_ratio of the compressed tier must be a number"),
        (
            "compressed:1GiB,codec=gzip",
            "--tier: The codec of the compressed tier must be one of auto, none, zstd, lz4, zlib, not \"gzip\"",
        ),
        (
            "compressed:1GiB,codec=zstd,level=20",
            "--tier: The level of the compressed tier must be a whole number from -7 to 19, not \"20\"",
        ),
        (
            "compressed:1GiB,codec=lz4,level=2",
            "--tier: The level of the compressed tier must be a whole number from 1 to 1",
        ),
        (
            "compressed:1GiB,codec=zlib,level=fast",
            "--tier: The level of the compressed tier must be a whole number from 1 to 9, not \"fast\"",
        ),
        (
            "compressed:1GiB,level=3",
            "--tier: The level of the compressed tier is a codec's: set codec to zstd or zlib too",
        ),
        ("compressed:1GiB,codec=none,level=3", "--tier: The level of the compressed tier is a codec's"),
        (
            "compressed:1GiB,chunk=5KiB",
            "--tier: The chunk of the compressed tier must be a power of two from 4KiB to 16MiB, not \"5KiB\"",
        ),
        ("compressed:1GiB,chunk=32MiB", "--tier: The chunk of the compressed tier must be a power of two"),
        ("compressed:1GiB,chunk=4GiB", "--tier: The chunk of the compressed tier must be a power of two"),
        (
            "remote:url=s3://b,timeout=0",
            "--tier: The timeout of the remote tier must be a whole number from 1 to 3600, not \"0\"",
        ),
        (
            "remote:url=s3://b,timeout=1.5",
            "--tier: The timeout of the remote tier must be a whole number from 1 to 3600",
        ),
        (
            "remote:url=s3://b,options=secret",
            "--tier: The options of the remote tier must be a table of NAME = \"VALUE\"; on the command line, name a file",
        ),
        (
            "remote:url=s3://b,options_file=/nonexistent/o",
            "--tier: The options of the remote tier cannot be taken from their file: Cannot read the options file /nonexistent/o: No such file",
        ),
        (
            "remote:url=s3://b,options_file=/dev/zero",
            "--tier: The options of the remote tier cannot be taken from their file: The options file /dev/zero is no regular file",
        ),
    ];
    for (option, expected) in cases {
        let message = message("", &["--tier", option]);

        assert!(message.starts_with(expected), "{option:?} gives {message}");
        assert!(!message.contains("secret") && !message.contains('\n'), "{message}");
    }
}

#[test]
fn tiers_wrong_files_are_named_with_their_line() {
    let cases = [
        ("tier = 3", "vramd.toml:1: invalid type: integer `3`, expected a sequence"),
        ("\n[[tier]]\nsize = 1", "vramd.toml:2: A tier needs a kind: host, compressed, disk or remote"),
        (
            "[[tier]]\nkind = \"ram\"",
            "vramd.toml:2: There is no kind of tier \"ram\"; the kinds are host, compressed",
        ),
        ("[[tier]]\nkind = 1", "vramd.toml:2: There is no kind of tier 1"),
        ("[[tier]]\nkind = \"host\"", "vramd.toml:1: The host tier needs a size"),
        (
            "[[tier]]\nkind = \"host\"\nsize = -1",
            "vramd.toml:3: The size of the host tier must be a size of more than 0 and at most 128TiB, not -1",
        ),
        ("[[tier]]\nkind = \"host\"\nsize = 1.5", "vramd.toml:3: The size of the host tier must be a size"),
        (
            "[[tier]]\nkind = \"host\"\nsize = \"4 apples\"",
            "vramd.toml:3: The size of the host tier: \"4 apples\" is not a size",
        ),
        (
            "[[tier]]\nkind = \"host\"\nsize = \"1GiB\"\nprealocate = true",
            "vramd.toml:4: A host tier has no field \"prealocate\"; its fields are size, preallocate, huge_pages",
        ),
        (
            "[[tier]]\nkind = \"host\"\nsize = \"1GiB\"\nhuge_pages = \"true\"",
            "vramd.toml:4: The huge_pages of the host tier must be true or false, not \"true\"",
        ),
        (
            "[[tier]]\nkind = \"host\"\nsize = \"1GiB\"\nhuge_pages = []",
            "vramd.toml:4: The huge_pages of the host tier must be true or false, not a list",
        ),
        (
            "[[tier]]\nkind = \"disk\"\nsize = \"1GiB\"\ndir = \"d\"",
            "vramd.toml:4: The dir of the disk tier must be an absolute path, not \"d\"",
        ),
        (
            "[[tier]]\nkind = \"disk\"\nsize = \"1GiB\"\ndir = 4",
            "vramd.toml:4: The dir of the disk tier must be a path, not 4",
        ),
        (
            "[[tier]]\nkind = \"remote\"\nurl = \"\"",
            "vramd.toml:3: The url of the remote tier must be a text, not \"\"",
        ),
        (
            "[[tier]]\nkind = \"compressed\"\nsize = 1\n[[tier]]\nkind = \"compressed\"\nsize = 2",
            "vramd.toml:4: A compressed tier is already defined (vramd.toml:1); there can be one of each kind",
        ),
    ];
    for (toml, expected) in cases {
        let message = message(toml, &[]);

        assert!(message.starts_with(expected), "{toml:?} gives {message}");
    }
}

#[test]
fn tiers_of_one_kind_in_file_and_options_are_refused() {
    let message = message("[[tier]]\nkind = \"host\"\nsize = \"1GiB\"", &["--tier=host:2GiB"]);

    assert!(message.starts_with("--tier: A host tier is already defined (vramd.toml:1)"), "{message}");
}

#[test]
fn tiers_relative_dirs_of_options_become_absolute() {
    let tiers = load("", &["--tier=disk:1GiB,dir=cold"]).unwrap();

    let here = std::env::current_dir().unwrap();
    assert!(
        matches!(&tiers[0], TierConfig::Chunked(vram_tier::TierConfig::Disk(disk)) if disk.dir == here.join("cold"))
    );
}

#[test]
fn tiers_remote_options_come_from_the_file_and_from_the_file_it_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = options_file(folder.path(), 0o640, b"aws_secret_access_key = \"hidden\"\n");
    let toml = format!(
        "[[tier]]\nkind = \"remote\"\nurl = \"s3://b\"\noptions_file = {path:?}\n\
         [tier.options]\naws_region = \"eu\"\naws_allow_http = true\n"
    );

    let tiers = load(&toml, &[]).unwrap();

    let [TierConfig::Chunked(vram_tier::TierConfig::Remote(remote))] = tiers.as_slice() else {
        panic!("{tiers:?}");
    };
    let options: Vec<_> =
        remote.options.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(
        options,
        [("aws_allow_http", "true"), ("aws_region", "eu"), ("aws_secret_access_key", "hidden")]
    );
    assert!(!format!("{tiers:?}").contains("hidden"));
}

#[test]
fn tiers_bad_options_files_are_refused_without_their_contents() {
    let folder = tempfile::tempdir().unwrap();
    let large = format!("a = \"{}\"", "x".repeat(1 << 16));
    let cases: &[(u32, &[u8], &str)] = &[
        (0o604, b"key = \"hidden\"", "is open to every user; close it with chmod o= "),
        (0o600, b"\nkey = hidden", "is not understood in line 2; write lines of NAME = \"VALUE\""),
        (0o600, b"key = \"hidden", "is not understood in line 1"),
        (0o600, b"key = [\"hidden\"]", "--tier: The option \"key\" of the remote tier must be a text"),
        (0o600, b"\xff\xfehidden", "Cannot read the options file"),
        (0o600, large.as_bytes(), "is larger than 64KiB"),
    ];
    for (mode, text, expected) in cases {
        let path = options_file(folder.path(), *mode, text);
        let message = message("", &["--tier", &format!("remote:url=s3://b,options_file={path}")]);

        assert!(message.contains(expected), "{message}");
        assert!(!message.contains("hidden") && !message.contains('\n'), "{message}");
    }
    let path = options_file(folder.path(), 0o600, b"key = 1");
    let toml = format!(
        "[[tier]]\nkind = \"remote\"\nurl = \"s3://b\"\noptions_file = {path:?}\noptions = {{ key = \"hidden\" }}"
    );
    let twice = message(&toml, &[]);
    assert!(twice.starts_with("vramd.toml:4: The option \"key\" of the remote tier is also in"), "{twice}");
}

#[test]
fn tiers_secrets_in_broken_files_are_not_repeated() {
    let tier = "[[tier]]\nkind = \"remote\"\nurl = \"s3://b\"\n";
    let cases = [
        "[tier.options]\nkey = hidden",
        "[tier.options]\nkey = \"hidden",
        "[tier.options]\n\nid = \"x\"\nkey = \"hidden\" again",
        "[tier.options]\nkey = \"\"\"hidden",
        "[tier.options]\nkey = \"hidden\"\nkey = \"hidden\"",
        "options = { key = hidden }",
        "options = {\n  id = \"x\",\n  key = hidden\n}",
        "options.key = hidden",
        "options = \"hidden\"",
        "options = [\"hidden\"]",
        "options = { key = [\"hidden\"] }",
        "options = { key = 1979-05-27 }\nurl = \"hidden\"",
    ];
    for case in cases {
        let message = message(&format!("{tier}{case}"), &[]);

        assert!(
            message.starts_with("vramd.toml:") && !message.contains("hidden"),
            "{case:?} gives {message}"
        );
    }
}

#[test]
fn tiers_parse_errors_outside_of_options_are_quoted() {
    let toml =
        "[[tier]]\nkind = \"remote\"\nurl = \"s3://b\"\n[tier.options]\nkey = \"hidden\"\n[gpu]\nbackend = 1";

    let message = message(toml, &[]);

    assert!(message.ends_with("(in `backend = 1`)"), "{message}");
}

#[test]
fn tier_of_the_largest_size_is_taken() {
    let tiers = load("", &["--tier=compressed:128TiB"]).unwrap();

    assert!(matches!(
        &tiers[0],
        TierConfig::Chunked(vram_tier::TierConfig::Compressed(tier)) if tier.bytes == Some(ByteSize(1 << 47).bytes())
    ));
}
