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
use vram_control_api::v1::{self, ErrorBody, ErrorCode, Gpu, Gpus, Slices};
use vram_sandbox::{Outcome, contain};

use crate::{ControlState, Refusal};

/// A hint lists at most so many names.
const MAX_HINTED_NAMES: usize = 20;
/// A message repeats at most so many characters of what the caller wrote.
const MAX_QUOTED_CHARS: usize = 60;

type SharedState = State<Arc<dyn ControlState>>;

/// All there is to ask.
pub(crate) fn router(state: Arc<dyn ControlState>, max_body_bytes: u64) -> Router {
    Router::new()
        .route(v1::DAEMON_PATH, get(daemon))
        .route(v1::GPUS_PATH, get(gpus))
        .route(v1::GPU_DRAIN_PATH, post(drain_gpu))
        .route(v1::GPU_UNDRAIN_PATH, post(undrain_gpu))
        .route(v1::SLICES_PATH, get(slices))
        .route(v1::SLICE_PATH, get(slice).patch(change_slice))
        .fallback(unknown_route)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(usize::try_from(max_body_bytes).unwrap_or(usize::MAX)))
        .layer(from_fn(move |request, next| refuse_large_body(max_body_bytes, request, next)))
        .with_state(state)
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

async fn drain_gpu(State(state): SharedState, index: Result<Path<String>, PathRejection>) -> Response {
    change_gpu(index, |index| state.drain_gpu(index))
}

async fn undrain_gpu(State(state): SharedState, index: Result<Path<String>, PathRejection>) -> Response {
    change_gpu(index, |index| state.undrain_gpu(index))
}

fn change_gpu(
    index: Result<Path<String>, PathRejection>,
    change: impl FnOnce(u16) -> Result<Gpu, Refusal>,
) -> Response {
    let index = index.map_or_else(|_| "\u{fffd}".to_owned(), |Path(index)| index);
    let Ok(number) = index.parse::<u16>() else {
        return not_found(format!("There is no GPU {:?}", quote(&index)), "GPUs are numbered from 0");
    };
    match contain("operator API", || change(number)) {
        Outcome::Returned(Ok(gpu)) => Json(gpu).into_response(),
        Outcome::Returned(Err(Refusal::NotFound { message })) => {
            not_found(message, "GPUs are numbered from 0")
        }
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
    // A name that is no UTF-8 is the name of no slice.
    let name = name.map_or_else(|_| "\u{fffd}".to_owned(), |Path(name)| name);
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
    let name = name.map_or_else(|_| "\u{fffd}".to_owned(), |Path(name)| name);
    let body = match body {
        Ok(body) => body,
        // Too large, or cut off.
        Err(rejection) => return refuse(rejection.status(), bad_body(&rejection.body_text())),
    };
    // An array would do for a structure.
    let object = serde_json::from_slice::<serde_json::Map<_, _>>(&body);
    let change = match object.and_then(|object| serde_json::from_value(object.into())) {
        Ok(change) => change,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, bad_body(&error.to_string())),
    };
    let ask = || match state.change_slice(&name, change) {
        Ok(slice) => Json(slice).into_response(),
        Err(Refusal::NotFound { .. }) => refuse(StatusCode::NOT_FOUND, no_such_slice(&name, &state.slices())),
        Err(Refusal::Conflict { message }) => conflict(message),
    };
    match contain("operator API", ask) {
        Outcome::Returned(response) => response,
        Outcome::Panicked(_) => internal_error(),
    }
}

fn bad_body(problem: &str) -> ErrorBody {
    let message = format!("The body is not a change of a slice: {}", quote(problem));
    let hint = Some(r#"Send {"limit_bytes": N, "guarantee_bytes": N}, or one of the two"#.to_owned());
    ErrorBody { code: ErrorCode::BadRequest, message, hint }
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
    ];
    let routes = routes.join(", ");
    let body = ErrorBody {
        code: ErrorCode::UnknownRoute,
        message: format!("There is nothing at {}", quote(uri.path())),
        hint: Some(format!("This vramd serves {routes}")),
    };
    refuse(StatusCode::NOT_FOUND, body)
}

async fn method_not_allowed(method: Method, uri: Uri) -> Response {
    let body = ErrorBody {
        code: ErrorCode::MethodNotAllowed,
        message: format!("{} does not take {}", quote(uri.path()), quote(method.as_str())),
        hint: Some(other_method(&method, uri.path()).to_owned()),
    };
    refuse(StatusCode::METHOD_NOT_ALLOWED, body)
}

fn other_method(method: &Method, path: &str) -> &'static str {
    let is_slice = path.starts_with(&format!("{}/", v1::SLICES_PATH));
    match (is_slice, *method == Method::GET) {
        (true, _) => "Use GET or PATCH",
        (false, true) => "Use POST",
        (false, false) => "Use GET",
    }
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
    let mut quoted: String = text.chars().take(MAX_QUOTED_CHARS).collect();
    if quoted.len() < text.len() {
        quoted.push('…');
    }
    quoted
}
