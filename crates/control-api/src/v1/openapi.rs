//! Describes version 1 for other languages and holds `docs/openapi.json` to it.
//!
//! The functions below exist for their attributes alone; nothing calls them.
#![allow(dead_code)]

use utoipa::OpenApi;

use super::*;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "vram operator API",
        description = "HTTP/1.1 over the Unix socket `/run/vram/control.sock`. Every answer that is not a success has an \
            `ErrorBody`, but for those to malformed requests (400, 414, 431), which have no body. A connection carries one \
            request and is closed after 8 seconds. With too many connections open the answer is 503: ask again.",
        version = "1"
    ),
    paths(
        daemon,
        gpus,
        drain_gpu,
        undrain_gpu,
        slices,
        create_slice,
        slice,
        change_slice,
        remove_slice,
        tiers
    ),
    components(schemas(ErrorBody))
)]
struct Description;

#[utoipa::path(get, path = DAEMON_PATH, responses((status = 200, body = Daemon, description = "The daemon")))]
/// What is running, and on what
fn daemon() {}

#[utoipa::path(get, path = GPUS_PATH, responses((status = 200, body = Gpus, description = "The GPUs, by number")))]
/// The GPUs of the pool
fn gpus() {}

#[utoipa::path(
    post,
    path = GPU_DRAIN_PATH,
    params(("index" = u16, Path, description = "Number of the GPU")),
    responses(
        (status = 400, body = ErrorBody, description = "There is a body, and it is not `{}`"),
        (status = 200, body = Gpu, description = "The GPU, from which everything moves to others in the background"),
        (status = 404, body = ErrorBody, description = "There is no such GPU"),
        (status = 409, body = ErrorBody, description = "It cannot be drained: it is lost, a slice may not leave it, or the \
            others have less than is guaranteed")
    )
)]
/// Moves everything off a GPU
fn drain_gpu() {}

#[utoipa::path(
    post,
    path = GPU_UNDRAIN_PATH,
    params(("index" = u16, Path, description = "Number of the GPU")),
    responses(
        (status = 200, body = Gpu, description = "The GPU, in use again"),
        (status = 400, body = ErrorBody, description = "There is a body, and it is not `{}`"),
        (status = 404, body = ErrorBody, description = "There is no such GPU")
    )
)]
/// Takes a GPU back into use
fn undrain_gpu() {}

#[utoipa::path(get, path = SLICES_PATH, responses((status = 200, body = Slices, description = "The slices, by name")))]
/// All slices
fn slices() {}

#[utoipa::path(
    post,
    path = SLICES_PATH,
    request_body = NewSlice,
    responses(
        (status = 201, body = Slice, description = "The slice; a VMM can connect to its socket"),
        (status = 400, body = ErrorBody, description = "The body is no `NewSlice`, has a field twice, or a value that can never be"),
        (status = 409, body = ErrorBody, description = "It cannot be: its name or socket is taken, there is no such GPU, or \
            the guarantee does not fit")
    )
)]
/// Makes a slice, until it is removed or the daemon ends
fn create_slice() {}

#[utoipa::path(
    get,
    path = SLICE_PATH,
    params(("name" = String, Path, description = "Name of the slice")),
    responses(
        (status = 200, body = Slice, description = "The slice"),
        (status = 404, body = ErrorBody, description = "There is no such slice; the hint lists those there are")
    )
)]
/// One slice
fn slice() {}

#[utoipa::path(
    patch,
    path = SLICE_PATH,
    params(("name" = String, Path, description = "Name of the slice")),
    request_body = SliceChange,
    responses(
        (status = 200, body = Slice, description = "The slice as it is now"),
        (status = 400, body = ErrorBody, description = "The body is no `SliceChange`, has a field twice, or a limit beyond the largest"),
        (status = 404, body = ErrorBody, description = "There is no such slice; the hint lists those there are"),
        (status = 409, body = ErrorBody, description = "It cannot be: the guarantee is above the limit or does not fit, or \
            the limit does not fit the slice's addresses")
    )
)]
/// Changes limit and guarantee of a slice
fn change_slice() {}

#[utoipa::path(
    delete,
    path = SLICE_PATH,
    params(("name" = String, Path, description = "Name of the slice")),
    responses(
        (status = 200, body = Slice, description = "The slice as it was; it is gone, and its socket with it"),
        (status = 400, body = ErrorBody, description = "There is a body, and it is not `{}`"),
        (status = 404, body = ErrorBody, description = "There is no such slice; the hint lists those there are"),
        (status = 409, body = ErrorBody, description = "A VMM is connected to it, or memory of the last one is still coming back")
    )
)]
/// Removes a slice that no VMM is connected to
fn remove_slice() {}

#[utoipa::path(get, path = TIERS_PATH, responses((status = 200, body = Tiers, description = "The tiers, the fastest first")))]
/// The tiers below the GPUs
fn tiers() {}

#[test]
fn openapi_document_matches_the_types() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let mut expected = Description::openapi().to_pretty_json().unwrap();
    expected.push('\n');

    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        std::fs::write(path, &expected).unwrap();
    }

    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/openapi.json differs from the types: run `UPDATE_OPENAPI=1 cargo test -p vram-control-api openapi`"
    );
}
