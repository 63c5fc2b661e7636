//! The real client, and worse ones, against the server over a real socket.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use vram_control_api::v1::{ErrorCode, GpuState, SliceChange};
use vram_control_api::{Client, ClientError};
use vram_control_server::{ControlServer, ControlState, Limits, ServerError};
use vram_testkit::FakeDaemon;

struct Fixture {
    server: ControlServer,
    client: Client,
    _folder: TempDir,
}

fn serve(limits: Limits) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let server = ControlServer::start_with(socket.clone(), Arc::new(FakeDaemon::default()), limits).unwrap();
    Fixture { server, client: Client::new(socket), _folder: folder }
}

impl Fixture {
    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.server.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Sends bytes and reads until the server closes.
    fn exchange(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        // The server may close before it has read all.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
        }
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// The JSON body of an answer to a GET, whatever its status.
    fn get(&self, path: &str) -> Value {
        self.ask("GET", path)
    }

    fn ask(&self, method: &str, path: &str) -> Value {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}"
        );
        let answer = self.exchange(request.as_bytes());
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}

#[test]
fn server_drains_gpus_by_post_alone() {
    let fixture = serve(Limits::default());

    assert_eq!(fixture.client.drain_gpu(0).unwrap().state, GpuState::Draining);
    assert_eq!(fixture.client.undrain_gpu(0).unwrap().state, GpuState::Ready);
    let refused = |error: ClientError| match error {
        ClientError::Refused { status, body } => (status, body.code, body.message),
        other => panic!("{other:?}"),
    };
    let lost = refused(fixture.client.drain_gpu(1).unwrap_err());
    assert_eq!(lost, (409, ErrorCode::Conflict, "gpu1 is lost".into()));
    let missing = refused(fixture.client.undrain_gpu(7).unwrap_err());
    assert_eq!(missing, (404, ErrorCode::NotFound, "gpu7 is not part of the pool".into()));
    for index in ["-1", "65536", "x", "%ff", "0x0"] {
        let request = format!("POST /v1/gpus/{index}/drain HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let answer = fixture.exchange(request.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 404"), "{index}: {answer}");
    }
}

#[test]
fn server_changes_slices_by_patch() {
    let fixture = serve(Limits::default());
    let change = |limit_bytes, guarantee_bytes| {
        fixture.client.change_slice("a", &SliceChange { limit_bytes, guarantee_bytes })
    };

    assert_eq!(change(Some(3 << 30), None).unwrap().limit_bytes, 3 << 30);
    assert_eq!(change(Some(7), Some(6)).unwrap().guarantee_bytes, 6);
    assert!(matches!(change(Some(1), Some(2)), Err(ClientError::Refused { status: 409, .. })));
    let nobody = fixture.client.change_slice("c", &SliceChange::default());
    assert!(matches!(nobody, Err(ClientError::Refused { status: 404, .. })));
    let patch = |body: &str, headers: &str| {
        let length = body.len();
        fixture.exchange(
            format!(
                "PATCH /v1/slices/a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
            )
            .as_bytes(),
        )
    };
    for body in ["", "{", "[]", "{\"limit_bytes\":-1}", "{\"limit\":1}", "{\"limit_bytes\":1e99}", "\u{0}"] {
        let answer = patch(body, "");
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("bad_request"), "{body}: {answer}");
    }
    assert!(patch("{}", "").starts_with("HTTP/1.1 200"));
    let endless = "PATCH /v1/slices/a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".to_owned()
        + &format!("20000\r\n{}\r\n0\r\n\r\n", "x".repeat(0x20000));
    assert!(fixture.exchange(endless.as_bytes()).starts_with("HTTP/1.1 413"));
    assert!(fixture.client.slice("a").is_ok());
}

#[test]
fn server_makes_slices_by_post_and_removes_them_by_delete() {
    let fixture = serve(Limits::default());
    let new = |name: &str, limit_bytes| {
        let body = serde_json::json!({ "name": name, "limit_bytes": limit_bytes });
        fixture.client.create_slice(&serde_json::from_value(body).unwrap())
    };

    assert_eq!(new("c", 1 << 30).unwrap().limit_bytes, 1 << 30);
    assert!(matches!(new("c", 0), Err(ClientError::Refused { status: 400, .. })));
    assert!(matches!(new("a", 1), Err(ClientError::Refused { status: 409, .. })));
    let ask = |method: &str, path: &str, body: &str| {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}",
            body.len()
        );
        fixture.exchange(format!("{head}\r\n\r\n{body}").as_bytes())
    };
    let made = ask("POST", "/v1/slices", r#"{"name":"c","limit_bytes":7}"#);
    assert!(made.starts_with("HTTP/1.1 201"), "{made}");
    for body in [
        "",
        "{}",
        r#"{"name":"c"}"#,
        r#"{"name":"c","limit_bytes":-1}"#,
        r#"{"name":"c","limit_bytes":1,"colour":2}"#,
        r#"{"name":"c","name":"d","limit_bytes":1}"#,
        r#"{"name":"c","limit_bytes":1,"home_gpu":65536}"#,
    ] {
        let answer = ask("POST", "/v1/slices", body);
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("bad_request"), "{body}: {answer}");
    }

    assert_eq!(fixture.client.remove_slice("tenant-b").unwrap().name, "tenant-b");
    let nobody = fixture.client.remove_slice("c").unwrap_err();
    assert!(
        matches!(nobody, ClientError::Refused { status: 404, body } if body.hint.as_ref().is_some_and(|hint| hint.contains("tenant-b")))
    );
    assert!(ask("DELETE", "/v1/slices/a", "{}").starts_with("HTTP/1.1 200"));
    assert!(ask("DELETE", "/v1/slices/a", r#"{"force":true}"#).starts_with("HTTP/1.1 400"));
    assert!(ask("DELETE", "/v1/slices", "").starts_with("HTTP/1.1 405"));
}

#[test]
fn server_real_client_gets_what_the_daemon_says() {
    let fixture = serve(Limits::default());

    let daemon = FakeDaemon::default();
    assert_eq!(fixture.client.daemon().unwrap(), daemon.daemon);
    assert_eq!(fixture.client.gpus().unwrap().gpus, daemon.gpus);
    assert_eq!(fixture.client.slices().unwrap().slices, daemon.slices);
    assert_eq!(fixture.client.tiers().unwrap().tiers, daemon.tiers);
    assert_eq!(fixture.client.slice("tenant-b").unwrap(), daemon.slice("tenant-b").unwrap());
}

#[test]
fn server_unknown_slices_are_refused_with_the_known_names() {
    let fixture = serve(Limits::default());

    for name in ["c", "A", "a/b", "é", "..", " ", "%", &"x".repeat(4000)] {
        let error = fixture.client.slice(name).unwrap_err();

        assert!(error.hint().unwrap().contains("The slices are a, tenant-b"), "{name:?} gives {error:?}");
        assert!(error.to_string().len() < 200, "{error}");
        assert!(
            matches!(error, ClientError::Refused { status: 404, body } if body.code == ErrorCode::NotFound)
        );
    }
}

#[test]
fn server_unknown_routes_and_methods_are_refused_in_json() {
    let fixture = serve(Limits::default());

    for path in ["/", "/v1", "/v1/", "/v2/daemon", "/v1/slices/", "/v1/slices/a/b", "/v1/daemon/"] {
        let body = fixture.get(path);

        assert_eq!(body["code"], "unknown_route", "{path}");
        assert!(body["hint"].as_str().unwrap().contains("/v1/slices/{name}"));
    }
}

#[test]
fn server_method_not_allowed_hints_at_those_that_are() {
    let fixture = serve(Limits::default());
    let cases = [
        ("GET", "/v1/gpus/0/drain", "POST"),
        ("DELETE", "/v1/gpus/0/drain", "POST"),
        ("PUT", "/v1/gpus/0/undrain", "POST"),
        ("POST", "/v1/gpus", "GET,HEAD"),
        ("PATCH", "/v1/slices", "GET,HEAD,POST"),
        ("POST", "/v1/tiers", "GET,HEAD"),
        ("DELETE", "/v1/daemon", "GET,HEAD"),
        ("PUT", "/v1/slices/a", "GET,HEAD,PATCH,DELETE"),
    ];
    for (method, path, allowed) in cases {
        let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        let answer = fixture.exchange(request.as_bytes());

        assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("method_not_allowed"), "{answer}");
        assert!(
            answer.to_lowercase().contains(&format!("allow: {}\r\n", allowed.to_lowercase())),
            "{answer}"
        );
        let hint = format!(r#""hint":"Use {}""#, allowed.replace(',', " or "));
        assert!(answer.contains(&hint), "{method} {path}: {answer}");
    }
}

#[test]
fn server_gpu_changes_take_no_settings() {
    let fixture = serve(Limits::default());
    for action in ["drain", "undrain"] {
        let post = |body: &str| {
            let length = body.len();
            let head = format!("POST /v1/gpus/0/{action} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}");
            fixture.exchange(format!("{head}\r\n\r\n{body}").as_bytes())
        };

        for body in ["", "{}", " {}\n"] {
            assert!(post(body).starts_with("HTTP/1.1 200"), "{body}: {}", post(body));
        }
        for body in ["{\"force\":true}", "[]", "null", "x"] {
            let answer = post(body);
            assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("bad_request"), "{body}: {answer}");
        }
    }
}

#[test]
fn server_slice_limits_end_at_128_tib_and_fields_come_once() {
    let fixture = serve(Limits::default());
    let change = |limit_bytes| {
        fixture
            .client
            .change_slice("a", &SliceChange { limit_bytes: Some(limit_bytes), ..SliceChange::default() })
    };

    assert_eq!(change(128 << 40).unwrap().limit_bytes, 128 << 40);
    for limit_bytes in [(128 << 40) + 1, u64::MAX] {
        match change(limit_bytes).unwrap_err() {
            ClientError::Refused { status: 400, body } => {
                assert!(body.message.contains("beyond the largest, 128TiB"), "{}", body.message);
            }
            other => panic!("{other:?}"),
        }
    }
    let body = "{\"limit_bytes\":1073741824,\"limit_bytes\":1073741824}";
    let head = format!("PATCH /v1/slices/a HTTP/1.1\r\nhost: x\r\ncontent-length: {}", body.len());
    let answer = fixture.exchange(format!("{head}\r\n\r\n{body}").as_bytes());
    assert!(
        answer.starts_with("HTTP/1.1 400") && answer.contains("duplicate field `limit_bytes`"),
        "{answer}"
    );
}

#[test]
fn server_garbage_is_answered_or_closed_and_others_are_served() {
    let fixture = serve(Limits::default());
    let long_line = [b"GET /".as_slice(), &[b'x'; 100_000], b" HTTP/1.1\r\n\r\n"].concat();
    let many_headers = [b"GET / HTTP/1.1\r\n".as_slice(), &b"a: b\r\n".repeat(1000), b"\r\n"].concat();
    let garbage: &[&[u8]] = &[
        b"\0\0\0\0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /v1/slices/%ff HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"GET /v1/daemon HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"GET /v1/daemon HTTP/1.1\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\nzz\r\n",
        &long_line,
        &many_headers,
        &[0xff; 1 << 20],
    ];
    for bytes in garbage {
        let answer = fixture.exchange(bytes);

        assert!(!answer.starts_with("HTTP/1.1 200") || answer.contains("boot_epoch"), "{answer}");
    }
    assert!(fixture.exchange(&long_line).starts_with("HTTP/1.1 4"));
    assert!(fixture.exchange(&many_headers).starts_with("HTTP/1.1 431 "));
    fixture.client.daemon().unwrap();
}

#[test]
fn server_large_body_is_refused_without_reading_it() {
    let fixture = serve(Limits::default());

    let answer =
        fixture.exchange(b"GET /v1/daemon HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n0123");

    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("too_large"), "{answer}");
}

#[test]
fn server_slow_clients_are_closed_and_others_wait_for_a_slot_at_most_as_long() {
    let connection_timeout = Duration::from_millis(600);
    let fixture = serve(Limits { max_connections: 3, connection_timeout, ..Limits::default() });
    let mut slow = [fixture.connect(), fixture.connect(), fixture.connect()];
    let heads: [&[u8]; 3] =
        [b"", b"GET /v1/dae", b"PATCH /v1/slices/a HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"];
    for (stream, head) in slow.iter_mut().zip(heads) {
        stream.write_all(head).unwrap();
    }
    let turned_away = fixture.exchange(b"GET /v1/daemon HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(turned_away.starts_with("HTTP/1.1 503") && turned_away.contains("\"busy\""), "{turned_away}");

    let start = Instant::now();
    fixture.client.daemon().unwrap();

    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    for stream in &mut slow {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
    }
}

#[test]
fn server_default_time_of_a_connection_is_eight_seconds() {
    let fixture = serve(Limits::default());
    let mut slow = fixture.connect();
    slow.write_all(b"PATCH /v1/slices/a HTTP/1.1\r\nhost: x\r\ncontent-length: 9999\r\n\r\n").unwrap();

    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(20) && slow.write_all(b" ").is_ok() {
        std::thread::sleep(Duration::from_millis(100));
    }

    let seconds = start.elapsed().as_secs_f32();
    assert!((7.5..12.0).contains(&seconds), "{seconds}");
}

#[test]
fn server_connection_carries_one_request() {
    let fixture = serve(Limits::default());

    let answers = fixture.exchange(&b"GET /v1/daemon HTTP/1.1\r\nhost: x\r\n\r\n".repeat(3));

    assert_eq!(answers.matches("HTTP/1.1 200").count(), 1, "{answers}");
    assert!(answers.to_lowercase().contains("connection: close"), "{answers}");
}

/// Set for the process that plays the crowd: the socket it connects to.
const CROWDED_SOCKET: &str = "VRAM_TEST_CROWDED_SOCKET";

/// Not a test by itself: the crowd of [`server_crowd_of_one_user_keeps_nobody_else_out`], in a process of that user.
#[test]
fn crowd_of_one_user() {
    let Some(socket) = std::env::var_os(CROWDED_SOCKET) else { return };
    let connections: Vec<_> = (0..100).map_while(|_| UnixStream::connect(&socket).ok()).collect();
    println!("connected");
    // Until the test closes our input.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(connections);
}

#[test]
fn server_crowd_of_one_user_keeps_nobody_else_out() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: not root, so there is nobody to be but oneself");
        return;
    }
    let limits =
        Limits { max_connections: 8, kept_connections: 2, max_connections_per_user: 4, ..Limits::default() };
    let fixture = serve(limits);
    let folder = fixture.server.socket().parent().unwrap();
    for (path, mode) in [(folder, 0o755), (fixture.server.socket(), 0o666)] {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let program = folder.join("crowd");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut crowds = [60_001, 60_002, 60_003].map(|user| {
        Command::new(&program)
            .args(["--exact", "crowd_of_one_user", "--nocapture"])
            .env(CROWDED_SOCKET, fixture.server.socket())
            .uid(user)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    });
    for crowd in &mut crowds {
        let mut said = BufReader::new(crowd.stdout.as_mut().unwrap()).lines();
        assert!(said.any(|line| line.unwrap().contains("connected")));
    }

    // Were there no slot, the client would ask until one of the crowd's is closed after its time.
    let start = Instant::now();
    for _ in 0..20 {
        fixture.client.daemon().unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    for mut crowd in crowds {
        drop(crowd.stdin.take());
        crowd.wait().unwrap();
    }
}

#[test]
fn server_idle_connection_is_closed_after_its_time() {
    let limits = Limits { connection_timeout: Duration::from_millis(200), ..Limits::default() };
    let fixture = serve(limits);

    assert_eq!(fixture.exchange(b""), "");
}

#[test]
fn server_panic_of_the_daemon_is_an_internal_error_and_others_are_served() {
    let fixture = serve(Limits::default());

    let error = fixture.client.slice(FakeDaemon::PANICS).unwrap_err();

    assert!(matches!(error, ClientError::Refused { status: 500, body } if body.code == ErrorCode::Internal));
    fixture.client.daemon().unwrap();
}

#[test]
fn server_second_one_is_refused_and_the_first_goes_on() {
    let fixture = serve(Limits::default());

    let error = ControlServer::start(fixture.server.socket(), Arc::new(FakeDaemon::default())).unwrap_err();

    assert!(matches!(error, ServerError::InUse { .. }), "{error:?}");
    fixture.client.daemon().unwrap();
}

#[test]
fn stop_removes_the_socket_and_a_new_server_starts_there() {
    let Fixture { server, client, _folder } = serve(Limits::default());
    let socket = server.socket().to_owned();

    server.stop().unwrap();

    assert!(!socket.exists());
    assert!(matches!(client.daemon(), Err(ClientError::SocketMissing { .. })));
    let again = ControlServer::start(&socket, Arc::new(FakeDaemon::default())).unwrap();
    client.daemon().unwrap();
    again.stop().unwrap();
}

#[test]
fn stop_with_idle_and_stuck_clients_is_bounded() {
    let fixture = serve(Limits { stop_timeout: Duration::from_millis(200), ..Limits::default() });
    let mut half = fixture.connect();
    half.write_all(b"GET /v1/dae").unwrap();
    let _idle = fixture.connect();
    fixture.client.daemon().unwrap();

    let start = Instant::now();
    fixture.server.stop().unwrap();

    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

#[test]
fn stop_while_the_daemon_does_not_answer_is_an_error() {
    let short = Duration::from_millis(100);
    let fixture = serve(Limits { stop_timeout: short, stop_slack: short, ..Limits::default() });
    let mut stream = fixture.connect();
    let stuck = FakeDaemon::STUCK;
    write!(stream, "GET /v1/slices/{stuck} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    std::thread::sleep(short);

    let error = fixture.server.stop().unwrap_err();

    assert!(matches!(error, ServerError::Stuck), "{error:?}");
}

#[test]
fn drop_stops_the_server_too() {
    let fixture = serve(Limits::default());
    let socket = fixture.server.socket().to_owned();

    drop(fixture.server);

    let deadline = Instant::now() + Duration::from_secs(10);
    while socket.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!socket.exists());
}

/// Every path of `docs/openapi.json` is served, and its answer has exactly the fields the document gives it.
#[test]
fn server_answers_what_the_openapi_document_says() {
    let fixture = serve(Limits::default());
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let document: Value = serde_json::from_slice(&std::fs::read(document).unwrap()).unwrap();

    let paths = document["paths"].as_object().unwrap();
    assert_eq!(paths.len(), 7);
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().unwrap() {
            let path = path.replace("{name}", "a").replace("{index}", "0");
            let body = fixture.ask(&method.to_uppercase(), &path);

            let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
            assert_matches_schema(&document, schema, &body, &path);
        }
    }
}

fn assert_matches_schema(document: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str().map(|path| path.rsplit('/').next().unwrap()) {
        return assert_matches_schema(document, &document["components"]["schemas"][name], value, at);
    }
    if let Some(properties) = schema["properties"].as_object() {
        let object = value.as_object().unwrap_or_else(|| panic!("{at} is no object"));
        let expected: Vec<_> = properties.keys().collect();
        let found: Vec<_> = object.keys().collect();
        assert_eq!(found, expected, "fields of {at}");
        for (name, property) in properties {
            assert_matches_schema(document, property, &object[name], &format!("{at}.{name}"));
        }
    } else if schema["type"] == "array" {
        for element in value.as_array().unwrap_or_else(|| panic!("{at} is no array")) {
            assert_matches_schema(document, &schema["items"], element, at);
        }
    } else if let Some(words) = schema["enum"].as_array() {
        assert!(words.contains(value), "{at} is {value}");
    } else if schema["type"] == "integer" {
        assert!(value.is_u64(), "{at} is {value}");
    } else if schema["type"] == "string" {
        assert!(value.is_string(), "{at} is {value}");
    }
}
