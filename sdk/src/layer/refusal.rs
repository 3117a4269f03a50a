use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use tonic::{Code, Status};

use super::guard::Protocol;

/// What a caller is told whose call is not taken.
#[derive(Debug)]
pub(super) struct Refusal {
    /// In words.
    pub(super) words: String,
    /// It may come again after this long; `None`: it may not call at all.
    pub(super) retry_after: Option<Duration>,
}

impl Refusal {
    pub(super) fn answer(self, protocol: Protocol) -> Response<Bytes> {
        match protocol {
            Protocol::Grpc => self.grpc(),
            Protocol::Http => self.http(),
        }
    }

    /// Trailers only: the answer ends with its headers.
    fn grpc(self) -> Response<Bytes> {
        let code = match self.retry_after {
            None => Code::PermissionDenied,
            Some(_) => Code::ResourceExhausted,
        };
        let mut answer = Status::new(code, self.words).into_http();
        if let Some(wait) = self.retry_after {
            let headers = answer.headers_mut();
            headers.insert(header::RETRY_AFTER, seconds(wait).into());
            headers.insert("grpc-retry-pushback-ms", milliseconds(wait).into());
        }
        answer
    }

    fn http(self) -> Response<Bytes> {
        let mut answer = Response::new((self.words + "\n").into());
        let headers = answer.headers_mut();
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        headers.insert(header::CONTENT_TYPE, text);
        *answer.status_mut() = match self.retry_after {
            None => StatusCode::FORBIDDEN,
            Some(wait) => {
                headers.insert(header::RETRY_AFTER, seconds(wait).into());
                StatusCode::TOO_MANY_REQUESTS
            }
        };
        answer
    }
}

/// Rounded up, and at least 1: who comes a moment early is refused again.
fn seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1)
}

/// Rounded up; gRPC has 32 bits with a sign for it.
fn milliseconds(wait: Duration) -> u64 {
    wait.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header<'a>(answer: &'a Response<Bytes>, name: &str) -> Option<&'a str> {
        Some(answer.headers().get(name)?.to_str().expect("ASCII"))
    }

    #[test]
    fn callers_of_grpc_get_a_status_alone() {
        let denied = Refusal { words: "no; nö".into(), retry_after: None };
        let answer = denied.answer(Protocol::Grpc);
        assert_eq!((answer.status(), answer.body().len()), (StatusCode::OK, 0));
        assert_eq!(header(&answer, "content-type"), Some("application/grpc"));
        assert_eq!(header(&answer, "grpc-status"), Some("7"));
        assert_eq!(header(&answer, "grpc-message"), Some("no;%20n%C3%B6"));
        assert_eq!(header(&answer, "retry-after"), None);
        let wait = Some(Duration::from_millis(1500));
        let answer = Refusal { words: "later".into(), retry_after: wait }.answer(Protocol::Grpc);
        assert_eq!(header(&answer, "grpc-status"), Some("8"));
        assert_eq!(header(&answer, "retry-after"), Some("2"));
        assert_eq!(header(&answer, "grpc-retry-pushback-ms"), Some("1500"));
    }

    #[test]
    fn callers_of_http_get_a_line() {
        let answer = Refusal { words: "no".into(), retry_after: None }.answer(Protocol::Http);
        assert_eq!((answer.status(), &answer.body()[..]), (StatusCode::FORBIDDEN, &b"no\n"[..]));
        assert_eq!(header(&answer, "content-type"), Some("text/plain; charset=utf-8"));
        let wait = Some(Duration::from_millis(10));
        let answer = Refusal { words: "later".into(), retry_after: wait }.answer(Protocol::Http);
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(header(&answer, "retry-after"), Some("1"));
    }

    #[test]
    fn who_waits_as_told_has_waited_long_enough() {
        for (wait, s, ms) in [
            (Duration::ZERO, 1, 0),
            (Duration::from_nanos(1), 1, 1),
            (Duration::from_secs(1), 1, 1000),
            (Duration::from_micros(1_000_001), 2, 1001),
            (Duration::from_secs(u64::MAX), u64::MAX, i32::MAX as u64),
        ] {
            assert_eq!((seconds(wait), milliseconds(wait)), (s, ms), "{wait:?}");
        }
        assert_eq!(seconds(Duration::MAX), u64::MAX);
    }
}
