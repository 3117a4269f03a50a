//! The gRPC shell.

use std::{sync::Arc, time::SystemTime};

use rulecast_api::{
    Code,
    proto::report::v1::{
        ReportRequest, ReportResponse,
        report_service_server::{self, ReportServiceServer},
    },
};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use super::Reports;
use crate::{
    observe::Caller,
    pods::{Pods, Standing},
    rollout::Rollout,
    scope::{Scope, Subject},
};

/// Largest report that is read, in bytes.
const MAX_REQUEST: usize = 1 << 20;
/// Reports that are taken at once; what is more is to come later, so that rules go first.
const AT_ONCE: usize = 2;

/// `rulecast.report.v1.ReportService`. Clones share everything.
#[derive(Clone, Debug)]
pub struct ReportService {
    reports: Reports,
    pods: Option<Pods>,
    rollout: Rollout,
    turns: Arc<Semaphore>,
}

impl ReportService {
    /// Over `reports`, from clients that are joined with `pods` where they run in one.
    pub fn new(reports: Reports, pods: Option<Pods>, rollout: Rollout) -> Self {
        Self { reports, pods, rollout, turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// For a router, with the limits on messages set.
    pub fn into_server(self) -> ReportServiceServer<Self> {
        ReportServiceServer::new(self).max_decoding_message_size(MAX_REQUEST)
    }

    /// What a client sees, whichever services it calls.
    fn scope(&self, caller: Caller) -> Scope {
        let mut subject = Subject::new(&caller.identity);
        if let Some((pod, pods)) = caller.pod.zip(self.pods.as_ref())
            && let Standing::Present(traits) = pods.follow(pod).standing()
        {
            subject.pod = traits;
        }
        Scope { subject, services: None }
    }
}

#[tonic::async_trait]
impl report_service_server::ReportService for ReportService {
    async fn report(
        &self,
        request: Request<ReportRequest>,
    ) -> Result<Response<ReportResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let now = SystemTime::now();
        if caller.not_after <= now {
            let message = "the client's certificate has expired; renew it and connect again";
            return Err(Status::unauthenticated(format!("{}: {message}", Code::IdentityEnded)));
        }
        let Ok(_turn) = self.turns.try_acquire() else {
            let message = "others report now; report later";
            return Err(Status::resource_exhausted(format!("{}: {message}", Code::RateLimited)));
        };
        let taken = self.reports.take(&self.scope(caller), request.get_ref(), now);
        let passed_over = taken.map_err(|e| Status::invalid_argument(e.to_string()))?;
        let again = Reports::again(self.rollout.len());
        let again_seconds = u32::try_from(again.as_secs()).unwrap_or(u32::MAX);
        Ok(Response::new(ReportResponse { passed_over, again_seconds }))
    }
}
