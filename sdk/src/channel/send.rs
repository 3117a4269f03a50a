//! One call over tonic channels: tries, times, and what is learnt of the endpoint.

use std::{future::poll_fn, time::Duration};

use http::{HeaderValue, Request, Response, request::Parts};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status, body::Body};
use tower_service::Service as _;

use super::{
    Choice, Governor, NoEndpoint, Tries, connect,
    grpc::{self, Lost, Watched},
    replay::Replay,
    said::Said,
};

const PREVIOUS_ATTEMPTS: &str = "grpc-previous-rpc-attempts";

/// Makes a call, as often as it takes and is allowed.
pub(super) async fn call(
    governor: Governor,
    request: Request<Body>,
) -> Result<Response<Body>, Status> {
    let (parts, body) = request.into_parts();
    let deadline = grpc::timeout(&parts.headers).and_then(|time| Instant::now().checked_add(time));
    let mut tries = Tries::new();
    let none = |none: NoEndpoint| Status::unavailable(none.to_string());
    let mut choice = choose(&governor, &parts, &mut tries).map_err(none)?;
    let retries = choice.retries();
    if retries == 0 {
        let request = Request::from_parts(parts, body);
        return send(&governor, choice, request, deadline).await.answer;
    }
    let (replay, mut body) = Replay::new(body);
    loop {
        let mut request = Request::from_parts(parts.clone(), body);
        if tries.count() > 1 {
            let before = HeaderValue::from(tries.count() - 1);
            request.headers_mut().insert(PREVIOUS_ATTEMPTS, before);
        }
        let Tried { answer, again } = send(&governor, choice, request, deadline).await;
        let Some(mut delay) = again else {
            replay.settle();
            return answer;
        };
        let Some(same) = replay.next() else { return answer };
        if !governor.may_retry(&tries, retries) {
            return answer;
        }
        let Ok(next) = choose(&governor, &parts, &mut tries) else { return answer };
        if delay.is_zero() {
            delay = tries.pause();
        }
        let start = Instant::now().checked_add(delay);
        if deadline.is_some_and(|deadline| start.is_none_or(|start| start >= deadline)) {
            return answer;
        }
        if !delay.is_zero() {
            sleep(delay).await;
        }
        (choice, body) = (next, same);
    }
}

/// Chooses by what rules may look at of a call.
fn choose(governor: &Governor, parts: &Parts, tries: &mut Tries) -> Result<Choice, NoEndpoint> {
    let method = parts.uri.path().rsplit('/').next().unwrap_or_default();
    let said = Said { attributes: parts.extensions.get(), headers: &parts.headers };
    governor.choose_for(method, &said, tries)
}

/// How a try ended.
struct Tried {
    /// For the caller, if this was the last try.
    answer: Result<Response<Body>, Status>,
    /// How long to wait before the next; `None`: there may be none.
    again: Option<Duration>,
}

impl Tried {
    fn finally(answer: Result<Response<Body>, Status>) -> Self {
        Self { answer, again: None }
    }
}

/// One try.
async fn send(
    governor: &Governor,
    choice: Choice,
    mut request: Request<Body>,
    deadline: Option<Instant>,
) -> Tried {
    let now = Instant::now();
    let own = choice.timeout().and_then(|time| now.checked_add(time));
    let until = [own, deadline].into_iter().flatten().min();
    if let Some(until) = until {
        request.headers_mut().insert(grpc::TIMEOUT, grpc::timeout_header(until - now));
    }
    let mut channel = match connect::channel(governor.inner(), choice.place()) {
        Ok(channel) => channel,
        // Not the endpoint's doing.
        Err(status) => return Tried::finally(Err(status)),
    };
    let answer = async {
        poll_fn(|cx| channel.poll_ready(cx)).await?;
        channel.call(request).await
    };
    let answer = match until {
        None => Ok(answer.await),
        Some(until) => timeout_at(until, answer).await,
    };
    let late = |choice: Choice| {
        let address = choice.endpoint().address();
        let took = until.map_or(Duration::ZERO, |until| until - now);
        let status = Status::deadline_exceeded(format!("{address} has not answered in {took:?}"));
        choice.failed();
        Tried::finally(Err(status))
    };
    match answer {
        Err(_) => late(choice),
        Ok(Err(error)) => match grpc::lost(error, choice.endpoint().address()) {
            Lost::Timeout => late(choice),
            Lost::Call(status) => {
                match grpc::is_failure(status.code()) {
                    true => choice.failed(),
                    false => choice.succeeded(),
                }
                let again = (status.code() == Code::Unavailable).then_some(Duration::ZERO);
                Tried { answer: Err(status), again }
            }
            Lost::Connection(status) => {
                choice.failed();
                Tried { answer: Err(status), again: Some(Duration::ZERO) }
            }
        },
        Ok(Ok(response)) => judge(response, choice),
    }
}

/// Looks at an answer that begins.
fn judge(response: Response<Body>, mut choice: Choice) -> Tried {
    let answer = match grpc::ended(&response) {
        None => response.map(|body| Body::new(Watched::new(body, choice))),
        Some(Code::Unavailable) => {
            choice.settle(false);
            let again = grpc::pushback(response.headers());
            return Tried { answer: Ok(response), again };
        }
        Some(code) => {
            choice.settle(!grpc::is_failure(code));
            response
        }
    };
    Tried::finally(Ok(answer))
}
