//! What the end of a gRPC call says of the endpoint.

use std::{
    error::Error as StdError,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use http_body::{Frame, SizeHint};
use tonic::{Code, ConnectError, Status, TimeoutExpired, body::Body};

use super::Choice;

pub(super) const TIMEOUT: &str = "grpc-timeout";
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Whether it is the endpoint that failed, not the call.
pub(super) fn is_failure(code: Code) -> bool {
    use Code::{DataLoss, DeadlineExceeded, Internal, Unavailable, Unknown};
    matches!(code, DataLoss | DeadlineExceeded | Internal | Unavailable | Unknown)
}

/// The code of an answer's headers or trailers.
fn code(headers: &HeaderMap) -> Option<Code> {
    Some(Code::from_bytes(headers.get(Status::GRPC_STATUS)?.as_bytes()))
}

/// The code with which an answer ends already with its headers; `None`: it goes on.
pub(super) fn ended<B>(response: &Response<B>) -> Option<Code> {
    code(response.headers()).or_else(|| match response.status().as_u16() {
        200 => None,
        // As the protocol's mapping of HTTP says.
        429 | 502..=504 => Some(Code::Unavailable),
        400 => Some(Code::Internal),
        _ => Some(Code::Unknown),
    })
}

/// When a server that answers so wants the call again; `None`: not at all.
pub(super) fn pushback(headers: &HeaderMap) -> Option<Duration> {
    match headers.get(PUSHBACK) {
        None => Some(Duration::ZERO),
        Some(ms) => Some(Duration::from_millis(ms.to_str().ok()?.parse().ok()?)),
    }
}

/// Why there is no answer.
pub(super) enum Lost {
    /// The connection could not be opened, or broke off: UNAVAILABLE.
    Connection(Status),
    /// The server ended this call alone.
    Call(Status),
    /// The time of the header [`TIMEOUT`] is over.
    Timeout,
}

/// Reads what a channel says.
pub(super) fn lost(error: tonic::transport::Error, address: &str) -> Lost {
    if find::<TimeoutExpired>(&error).is_some() {
        return Lost::Timeout;
    }
    let opening = find::<ConnectError>(&error).is_some();
    if !opening && find::<h2::Error>(&error).is_some_and(h2::Error::is_reset) {
        return Lost::Call(Status::from_error(error.into()));
    }
    let what = if opening { "cannot be reached" } else { "broke off" };
    let mut status = Status::unavailable(format!("{address} {what}: {}", Chain(&error)));
    status.set_source(Arc::new(error));
    Lost::Connection(status)
}

fn find<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    sources(error).find_map(|error| error.downcast_ref())
}

fn sources<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| StdError::source(*error))
}

/// An error with its sources.
pub(super) struct Chain<'a>(pub(super) &'a (dyn StdError + 'static));

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut last = String::new();
        for error in sources(self.0) {
            let text = error.to_string();
            // Many only repeat their source.
            if last.is_empty() {
                f.write_str(&text)?;
            } else if !last.ends_with(&text) {
                write!(f, ": {text}")?;
            }
            last = text;
        }
        Ok(())
    }
}

/// The time that a caller gives, by its header.
pub(super) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// The header for a time; of long ones in whole milliseconds or seconds.
pub(super) fn timeout_header(time: Duration) -> HeaderValue {
    const MOST: u128 = 99_999_999;
    let (micros, millis) = (time.as_micros(), time.as_millis());
    let text = match () {
        () if micros <= MOST => format!("{micros}u"),
        () if millis <= MOST => format!("{millis}m"),
        () => format!("{}S", u128::from(time.as_secs()).min(MOST)),
    };
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("1S"))
}

/// An answer's body that tells how the call went: by the first message or the status, whichever
/// comes first, so that a long stream does not keep it open. The call counts as under way until
/// the body ends or is dropped.
pub(super) struct Watched {
    body: Body,
    choice: Choice,
}

impl Watched {
    pub(super) fn new(body: Body, choice: Choice) -> Self {
        Self { body, choice }
    }
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        if this.choice.is_settled() {
            return Poll::Ready(frame);
        }
        let failed = match &frame {
            Some(Ok(frame)) => match frame.trailers_ref() {
                Some(trailers) => is_failure(code(trailers).unwrap_or(Code::Unknown)),
                None => false,
            },
            // Without a status, too.
            Some(Err(_)) | None => true,
        };
        this.choice.settle(!failed);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().expect("a value"));
        headers
    }

    #[test]
    fn reads_times() {
        let read = |text: &str| timeout(&headers(TIMEOUT, text));
        assert_eq!(read("5S"), Some(Duration::from_secs(5)));
        assert_eq!(read("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(read("99999999m"), Some(Duration::from_millis(99_999_999)));
        for wrong in ["", "S", "5", "5x", "+5S", "123456789S", " 5S", "5é"] {
            let value = HeaderValue::from_bytes(wrong.as_bytes()).expect("a value");
            assert_eq!(
                timeout(&HeaderMap::from_iter([(http::HeaderName::from_static(TIMEOUT), value)])),
                None,
                "{wrong}"
            );
        }
    }

    proptest! {
        #[test]
        fn times_come_back(micros in 0u64..u64::MAX) {
            let time = Duration::from_micros(micros);
            let header = timeout_header(time);
            let read = timeout(&HeaderMap::from_iter([(http::HeaderName::from_static(TIMEOUT), header)])).expect("ours");
            prop_assert!(read <= time);
            let most = Duration::from_secs(99_999_999);
            let unit = if time < Duration::from_secs(99_999) { Duration::from_millis(1) } else { Duration::from_secs(1) };
            prop_assert!(time.min(most) - read < unit);
        }
    }

    #[test]
    fn an_answer_may_end_with_its_headers() {
        let answer = |status: u16, headers: HeaderMap| {
            let mut response = Response::new(());
            *response.status_mut() = http::StatusCode::from_u16(status).expect("a status");
            *response.headers_mut() = headers;
            ended(&response)
        };
        assert_eq!(answer(200, HeaderMap::new()), None);
        assert_eq!(answer(200, headers("grpc-status", "14")), Some(Code::Unavailable));
        assert_eq!(answer(503, HeaderMap::new()), Some(Code::Unavailable));
        assert_eq!(answer(404, HeaderMap::new()), Some(Code::Unknown));
        assert_eq!(answer(503, headers("grpc-status", "5")), Some(Code::NotFound));
    }

    #[test]
    fn a_server_may_push_back() {
        assert_eq!(pushback(&HeaderMap::new()), Some(Duration::ZERO));
        assert_eq!(pushback(&headers(PUSHBACK, "20")), Some(Duration::from_millis(20)));
        for no in ["-1", "soon"] {
            assert_eq!(pushback(&headers(PUSHBACK, no)), None);
        }
    }
}
