//! From a request to an answer.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use vram_control_api::ByteSize;
use vram_control_api::v1::{self, ErrorBody, ErrorCode, Gpu, Gpus, NewSlice, SliceChange, Slices, Tiers};
use vram_sandbox::{Outcome, contain};

use crate::body::parse_object;
use crate::{ControlState, Refusal};

/// A hint lists at most so many names.
const MAX_HINTED_NAMES: usize = 20;
/// A message repeats at most so many characters of what the caller wrote.
const MAX_QUOTED_CHARS: usize = 60;
/// And at most so many of what is wrong with a body.
const MAX_PROBLEM_CHARS: usize = 200;

type SharedState = State<Arc<dyn ControlState>>;

/// All there is to ask.
pub(crate) fn router(state: Arc<dyn ControlState>, max_body_bytes: u64) -> Router {
    let routes = Router::new()
        .route(v1::DAEMON_PATH, get(daemon))
        .route(v1::GPUS_PATH, get(gpus))
        .route(v1::GPU_DRAIN_PATH, post(drain_gpu))
        .route(v1::GPU_UNDRAIN_PATH, post(undrain_gpu))
        .route(v1::SLICES_PATH, get(slices).post(create_slice))
        .route(v1::SLICE_PATH, get(slice).patch(change_slice).delete(remove_slice))
        .route(v1::TIERS_PATH, get(tiers))
        .fallback(unknown_route)
        .with_state(state);
    // Around the whole: a route's `Allow` is added outside of the layers of a router.
    Router::new()
        .fallback_service(routes)
        .layer(from_fn(explain_method_not_allowed))
        .layer(DefaultBodyLimit::max(usize::try_from(max_body_bytes).unwrap_or(usize::MAX)))
        .layer(from_fn(move |request, next| refuse_large_body(max_body_bytes, request, next)))
}

/// Answers whoever is not admitted.
pub(crate) fn busy() -> Router {
    Router::new().fallback(async || {
        let body = ErrorBody {
            code: ErrorCode::Busy,
            message: "Too many connections to the operator API are open".to_owned(),
            hint: Some("Ask again in a moment".to_owned()),
        };
        refuse(StatusCode::SERVICE_UNAVAILABLE, body)
    })
}

async fn daemon(State(state): SharedState) -> Response {
    answer(|| state.daemon())
}

async fn gpus(State(state): SharedState) -> Response {
    answer(|| Gpus { gpus: state.gpus() })
}

async fn drain_gpu(
    State(state): SharedState,
    index: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    change_gpu(index, body, |index| state.drain_gpu(index))
}

async fn undrain_gpu(
    State(state): SharedState,
    index: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    change_gpu(index, body, |index| state.undrain_gpu(index))
}

/// What is to be done besides what method and path say.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoSettings {}

/// What is answered to a body that is not what belongs there.
type BadBody = (StatusCode, ErrorBody);

/// Takes no body, or an empty object.
fn no_settings(expected: &str, body: Result<Bytes, BytesRejection>) -> Result<(), BadBody> {
    if body.as_ref().is_ok_and(Bytes::is_empty) {
        return Ok(());
    }
    settings::<NoSettings>(expected, "Send no body, or {}", body).map(|NoSettings {}| ())
}

/// Reads a body, or says what is wrong with it.
fn settings<T: DeserializeOwned>(
    expected: &str,
    hint: &str,
    body: Result<Bytes, BytesRejection>,
) -> Result<T, BadBody> {
    let bad_body = |status, problem: &str| (status, bad_request(expected, problem, hint));
    // Too large, or cut off.
    let body = body.map_err(|rejection| bad_body(rejection.status(), &rejection.body_text()))?;
    parse_object(&body).map_err(|error| bad_body(StatusCode::BAD_REQUEST, &error.to_string()))
}

fn change_gpu(
    index: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
    change: impl FnOnce(u16) -> Result<Gpu, Refusal>,
) -> Response {
    let index = typed(index);
    let Ok(number) = index.parse::<u16>() else {
        return not_found(format!("There is no GPU {:?}", quote(&index)), "GPUs are numbered from 0");
    };
    if let Err((status, body)) = no_settings("settings of a GPU", body) {
        return refuse(status, body);
    }
    match contain("operator API", || change(number)) {
        Outcome::Returned(Ok(gpu)) => Json(gpu).into_response(),
        Outcome::Returned(Err(Refusal::NotFound { message })) => {
            not_found(message, "GPUs are numbered from 0")
        }
        Outcome::Returned(Err(Refusal::Invalid { message })) => invalid(message),
        Outcome::Returned(Err(Refusal::Conflict { message })) => conflict(message),
        Outcome::Panicked(_) => internal_error(),
    }
}

fn not_found(message: String, hint: &str) -> Response {
    let body = ErrorBody { code: ErrorCode::NotFound, message, hint: Some(hint.to_owned()) };
    refuse(StatusCode::NOT_FOUND, body)
}

async fn slices(State(state): SharedState) -> Response {
    answer(|| Slices { slices: state.slices() })
}

async fn slice(State(state): SharedState, name: Result<Path<String>, PathRejection>) -> Response {
    let name = typed(name);
    match contain("operator API", || state.slice(&name).ok_or_else(|| no_such_slice(&name, &state.slices())))
    {
        Outcome::Returned(Ok(slice)) => Json(slice).into_response(),
        Outcome::Returned(Err(body)) => refuse(StatusCode::NOT_FOUND, body),
        Outcome::Panicked(_) => internal_error(),
    }
}

async fn change_slice(
    State(state): SharedState,
    name: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let name = typed(name);
    let (expected, hint) =
        ("a change of a slice", r#"Send {"limit_bytes": N, "guarantee_bytes": N}, or one of the two"#);
    let change: SliceChange = match settings(expected, hint, body) {
        Ok(change) => change,
        Err((status, body)) => return refuse(status, body),
    };
    if let Some(limit_bytes) = change.limit_bytes.filter(|bytes| *bytes > v1::MAX_LIMIT_BYTES) {
        let (limit, largest) = (ByteSize(limit_bytes), ByteSize(v1::MAX_LIMIT_BYTES));
        let problem = format!("the limit is {limit:#}, beyond the largest, {largest:#}");
        return refuse(StatusCode::BAD_REQUEST, bad_request(expected, &problem, hint));
    }
    on_slice(&state, &name, || state.change_slice(&name, change))
}

async fn remove_slice(
    State(state): SharedState,
    name: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let name = typed(name);
    if let Err((status, body)) = no_settings("settings of a removal", body) {
        return refuse(status, body);
    }
    on_slice(&state, &name, || state.remove_slice(&name))
}

async fn create_slice(State(state): SharedState, body: Result<Bytes, BytesRejection>) -> Response {
    let hint = r#"Send {"name": "NAME", "limit_bytes": N} and what else the slice is to have"#;
    let new: NewSlice = match settings("a slice to make", hint, body) {
        Ok(new) => new,
        Err((status, body)) => return refuse(status, body),
    };
    let name = new.name.clone();
    let mut response = on_slice(&state, &name, || state.create_slice(new));
    if response.status() == StatusCode::OK {
        *response.status_mut() = StatusCode::CREATED;
    }
    response
}

/// What stands in the path. What is no UTF-8 names nothing.
fn typed(part: Result<Path<String>, PathRejection>) -> String {
    part.map_or_else(|_| "\u{fffd}".to_owned(), |Path(part)| part)
}

/// Answers with a slice, or why there is none.
fn on_slice(
    state: &Arc<dyn ControlState>,
    name: &str,
    ask: impl FnOnce() -> Result<v1::Slice, Refusal>,
) -> Response {
    let answer = || match ask() {
        Ok(slice) => Json(slice).into_response(),
        Err(Refusal::NotFound { .. }) => refuse(StatusCode::NOT_FOUND, no_such_slice(name, &state.slices())),
        Err(Refusal::Invalid { message }) => invalid(message),
        Err(Refusal::Conflict { message }) => conflict(message),
    };
    match contain("operator API", answer) {
        Outcome::Returned(response) => response,
        Outcome::Panicked(_) => internal_error(),
    }
}

async fn tiers(State(state): SharedState) -> Response {
    answer(|| Tiers { tiers: state.tiers() })
}

fn bad_request(expected: &str, problem: &str, hint: &str) -> ErrorBody {
    let message = format!("The body is not {expected}: {}", shorten(problem, MAX_PROBLEM_CHARS));
    ErrorBody { code: ErrorCode::BadRequest, message, hint: Some(hint.to_owned()) }
}

fn invalid(message: String) -> Response {
    refuse(StatusCode::BAD_REQUEST, ErrorBody { code: ErrorCode::BadRequest, message, hint: None })
}

fn conflict(message: String) -> Response {
    refuse(StatusCode::CONFLICT, ErrorBody { code: ErrorCode::Conflict, message, hint: None })
}

fn no_such_slice(name: &str, slices: &[v1::Slice]) -> ErrorBody {
    let mut names: Vec<&str> =
        slices.iter().map(|slice| slice.name.as_str()).take(MAX_HINTED_NAMES).collect();
    if slices.len() > MAX_HINTED_NAMES {
        names.push("…");
    }
    let hint = match names.as_slice() {
        [] => "There are no slices".to_owned(),
        [only] => format!("The only slice is {only}"),
        names => format!("The slices are {}", names.join(", ")),
    };
    let message = format!("There is no slice {:?}", quote(name));
    ErrorBody { code: ErrorCode::NotFound, message, hint: Some(hint) }
}

async fn unknown_route(uri: Uri) -> Response {
    let routes = [
        v1::DAEMON_PATH,
        v1::GPUS_PATH,
        v1::GPU_DRAIN_PATH,
        v1::GPU_UNDRAIN_PATH,
        v1::SLICES_PATH,
        v1::SLICE_PATH,
        v1::TIERS_PATH,
    ];
    let routes = routes.join(", ");
    let body = ErrorBody {
        code: ErrorCode::UnknownRoute,
        message: format!("There is nothing at {}", quote(uri.path())),
        hint: Some(format!("This vramd serves {routes}")),
    };
    refuse(StatusCode::NOT_FOUND, body)
}

/// What the router says about methods, said in words too.
async fn explain_method_not_allowed(method: Method, uri: Uri, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    if response.status() != StatusCode::METHOD_NOT_ALLOWED {
        return response;
    }
    let allow = response.headers().get(header::ALLOW).cloned();
    let methods = allow.as_ref().and_then(|allow| allow.to_str().ok());
    let body = ErrorBody {
        code: ErrorCode::MethodNotAllowed,
        message: format!("{} does not take {}", quote(uri.path()), quote(method.as_str())),
        hint: methods.map(|methods| format!("Use {}", methods.replace(',', " or "))),
    };
    let mut refusal = refuse(StatusCode::METHOD_NOT_ALLOWED, body);
    refusal.headers_mut().extend(allow.map(|allow| (header::ALLOW, allow)));
    refusal
}

/// Bodies of unknown length are cut off where they become too long, if they are read at all.
async fn refuse_large_body(max_body_bytes: u64, request: Request, next: Next) -> Response {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if length.and_then(|digits| digits.parse::<u64>().ok()).is_some_and(|bytes| bytes > max_body_bytes) {
        let message = format!("The body is larger than {max_body_bytes} bytes");
        let body = ErrorBody { code: ErrorCode::TooLarge, message, hint: None };
        return refuse(StatusCode::PAYLOAD_TOO_LARGE, body);
    }
    let (method, path) = (request.method().clone(), request.uri().clone());
    let response = next.run(request).await;
    tracing::debug!(%method, path = quote(path.path()), status = response.status().as_u16(), "Answered an operator");
    response
}

fn answer<T: serde::Serialize>(ask: impl FnOnce() -> T) -> Response {
    match contain("operator API", ask) {
        Outcome::Returned(value) => Json(value).into_response(),
        Outcome::Panicked(_) => internal_error(),
    }
}

fn internal_error() -> Response {
    let body = ErrorBody {
        code: ErrorCode::Internal,
        message: "vramd failed to answer".to_owned(),
        hint: Some("Its log says why; what it serves to guests goes on".to_owned()),
    };
    refuse(StatusCode::INTERNAL_SERVER_ERROR, body)
}

fn refuse(status: StatusCode, body: ErrorBody) -> Response {
    (status, Json(body)).into_response()
}

fn quote(text: &str) -> String {
    shorten(text, MAX_QUOTED_CHARS)
}

fn shorten(text: &str, max_chars: usize) -> String {
    let mut shortened: String = text.chars().take(max_chars).collect();
    if shortened.len() < text.len() {
        shortened.push('…');
    }
    shortened
}
