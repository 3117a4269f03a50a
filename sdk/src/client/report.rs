//! Tells the plane what rules made of calls.

use std::{convert::Infallible, future::pending, time::Duration};

use rulecast_api::proto::report::v1::report_service_client::ReportServiceClient;
use tokio::time::{self, timeout};
use tonic::{Code, transport::Channel};
use tracing::debug;

use super::shared::Shared;
use crate::metrics::Reporter;

/// How long the plane may take for a report.
const LIMIT: Duration = Duration::from_secs(10);
/// Longest wait before the next report.
const LONGEST: Duration = Duration::from_secs(600);

/// Reports over one connection, for as long as it is polled. What the plane does not take goes
/// with a later report.
pub(super) async fn run(
    shared: &Shared,
    channel: Channel,
    reporter: &mut Reporter,
    least: Option<Duration>,
) -> Infallible {
    let Some(least) = least else { return pending().await };
    let mut client = ReportServiceClient::new(channel);
    let least = least.min(LONGEST);
    let mut wait = least;
    loop {
        // Clients that connected together do not report together.
        time::sleep(wait.mul_f64(1.0 + fastrand::f64() / 2.0)).await;
        let Some(report) = shared.report(reporter) else { continue };
        wait = match timeout(LIMIT, client.report(report)).await {
            Ok(Ok(response)) => {
                reporter.sent();
                let again = response.into_inner().again_seconds;
                Duration::from_secs(again.into()).max(least)
            }
            Ok(Err(status)) if status.code() == Code::Unimplemented => {
                debug!("the plane takes no reports");
                return pending().await;
            }
            Ok(Err(status)) => {
                debug!(%status, "the plane did not take a report");
                wait * 2
            }
            Err(_) => {
                debug!("the plane did not answer a report within {LIMIT:?}");
                wait * 2
            }
        };
        wait = wait.min(LONGEST);
    }
}
