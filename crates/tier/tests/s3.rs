//! The remote tier on S3: a server in this process that knows as much of it as the tier needs.
#![cfg(feature = "s3")]

mod support;

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::{Random, bytes, memory, remote_config};
use vram_tier::{ChunkedStore, OpenError, RemoteConfig, Store, TierConfig, TierError};

type Objects = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// Serves one connection until it is closed.
fn serve(stream: &TcpStream, objects: &Objects) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut line, mut len, mut range, mut signed) = (String::new(), 0, None, false);
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let mut words = line.split_whitespace();
        let (method, target) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let Some((name, value)) = header.trim().split_once(": ") else { break };
            match name.to_lowercase().as_str() {
                "content-length" => len = value.parse().unwrap(),
                "range" => {
                    let (from, to) = value.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
                    range = Some((from.parse::<usize>().unwrap(), to.parse::<usize>().unwrap()));
                }
                "authorization" => signed = value.starts_with("AWS4-HMAC-SHA256 Credential=id/"),
                _ => {}
            }
        }
        let mut body = vec![0; len];
        reader.read_exact(&mut body)?;
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let key = path.strip_prefix("/bucket").unwrap().trim_start_matches('/').to_owned();
        let mut objects = objects.lock().unwrap();
        let (status, more, answer) = match method.as_str() {
            _ if !signed => ("403 Forbidden", String::new(), Vec::new()),
            "PUT" => {
                objects.insert(key, body);
                ("200 OK", String::new(), Vec::new())
            }
            "DELETE" => {
                objects.remove(&key);
                ("204 No Content", String::new(), Vec::new())
            }
            "GET" if query.contains("list-type=2") => {
                let mut list = String::from("<ListBucketResult>");
                for (key, bytes) in objects.iter() {
                    list += &format!(
                        "<Contents><Key>{key}</Key><Size>{}</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
                         </Contents>",
                        bytes.len()
                    );
                }
                ("200 OK", String::new(), (list + "</ListBucketResult>").into_bytes())
            }
            "GET" => match (objects.get(&key), range) {
                (Some(found), Some((from, to))) if from < found.len() => {
                    let to = to.min(found.len() - 1);
                    let more = format!("Content-Range: bytes {from}-{to}/{}\r\n", found.len());
                    ("206 Partial Content", more, found[from..=to].to_vec())
                }
                (Some(found), _) => ("200 OK", String::new(), found.clone()),
                (None, _) => ("404 Not Found", String::new(), Vec::new()),
            },
            _ => ("501 Not Implemented", String::new(), Vec::new()),
        };
        drop(objects);
        let modified = "ETag: \"1\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{modified}{more}\r\n", answer.len());
        let mut stream = stream;
        stream.write_all(head.as_bytes())?;
        stream.write_all(&answer)?;
    }
}

fn server() -> (String, Objects) {
    let listener = TcpListener::bind(("localhost", 0)).unwrap();
    let endpoint = format!("http://localhost:{}", listener.local_addr().unwrap().port());
    let objects = Objects::default();
    let served = Arc::clone(&objects);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let objects = Arc::clone(&served);
            std::thread::spawn(move || serve(&stream, &objects));
        }
    });
    (endpoint, objects)
}

fn config(endpoint: &str, key_id: &str) -> RemoteConfig {
    let options = [
        ("aws_endpoint", endpoint),
        ("aws_allow_http", "true"),
        ("aws_access_key_id", key_id),
        ("aws_secret_access_key", "hushed"),
        ("aws_region", "nowhere"),
    ];
    let options = options.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let timeout = Duration::from_secs(5);
    let url = "s3://bucket/some/prefix/".to_owned();
    RemoteConfig { options, timeout, url, ..remote_config(std::path::Path::new("/"), None, true) }
}

#[test]
fn regions_go_to_a_server_and_come_back() {
    let (endpoint, objects) = server();
    let store = ChunkedStore::open(&TierConfig::Remote(config(&endpoint, "id"))).unwrap();
    assert!(objects.lock().unwrap().is_empty(), "the trial object is gone");
    let mut given = vec![0; 20 << 20];
    Random(1).fill(&mut given);
    let stored = store.put(&memory(&given)).unwrap();
    let names: Vec<String> = objects.lock().unwrap().keys().cloned().collect();
    assert!(names.len() == 2 && names.iter().all(|name| name.starts_with("some/prefix/vram-")), "{names:?}");
    let to = memory(&vec![0; given.len()]);
    store.get(&stored, 0, &to).unwrap();
    assert!(bytes(&to) == given);
    let part = memory(&vec![0; 10_000]);
    store.get(&stored, 16 << 20, &part).unwrap();
    assert!(bytes(&part) == given[16 << 20..][..10_000]);

    objects.lock().unwrap().values_mut().for_each(|object| object[5000] ^= 1);
    assert!(matches!(store.get(&stored, 0, &to), Err(TierError::Corrupt { offset_bytes: 4096, .. })));
    store.remove(stored).unwrap();
    assert!(objects.lock().unwrap().is_empty());
    let left = store.put(&memory(&given[..100_000])).unwrap();
    store.close().unwrap();
    assert!(objects.lock().unwrap().is_empty());
    drop(left);
}

#[test]
fn server_that_refuses_or_is_not_there_is_a_clear_error() {
    let (endpoint, _objects) = server();
    let open = |config| ChunkedStore::open(&TierConfig::Remote(config)).map(drop).unwrap_err();
    let refused = open(config(&endpoint, "other"));
    assert!(matches!(&refused, OpenError::Trial { .. }), "{refused}");
    let missing = open(config("http://localhost:1", "id"));
    assert!(matches!(&missing, OpenError::Trial { .. }), "{missing}");
    let mut wrong = config(&endpoint, "id");
    wrong.options.push(("aws_no_such_option".to_owned(), String::new()));
    assert!(matches!(open(wrong), OpenError::Client { .. }));
    assert!(!format!("{:?}", config(&endpoint, "id")).contains("hushed"), "secrets are not printed");
}
