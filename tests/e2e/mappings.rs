//! Registrations of service names, by many clients of one plane at once.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result, ensure};
use rulecast_api::proto::dubbo::mapping::{
    ServiceMappingRequest, service_name_mapping_service_client::ServiceNameMappingServiceClient,
};
use rulecast_identity::{ConnectOptions, connect, tls};
use tokio::task::JoinSet;

use crate::site::Site;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_clients_that_register_at_once_lose_nothing() -> Result<()> {
    let site = Site::start().await?;
    let plane = site.dds.to_string();
    let client = site.client("a")?.connect().await?;
    let identity = client.identity().context("it has joined")?;
    let tls = tls::client_config(&identity, tls::Expected::dds())?;
    // Each over a connection of its own, opened before the first registers.
    let mut channels = Vec::new();
    for _ in 0..50 {
        channels.push(connect(&plane, tls.clone(), &ConnectOptions::default()).await?);
    }
    let mut clients = JoinSet::new();
    for (number, channel) in channels.into_iter().enumerate() {
        clients.spawn(async move {
            let request = ServiceMappingRequest {
                namespace: "shop".into(),
                application_name: format!("app-{number}"),
                interface_names: vec!["com.example.Order".into(), "com.example.Stock".into()],
            };
            let mut client = ServiceNameMappingServiceClient::new(channel);
            client.register_service_app_mapping(request).await
        });
    }
    while let Some(answer) = clients.join_next().await {
        let answer = answer??.into_inner();
        ensure!(answer.success, "{}", answer.message);
    }
    // When the last is answered, all of it is stored.
    let all: BTreeSet<String> = (0..50).map(|number| format!("app-{number}")).collect();
    for name in ["com.example.order", "com.example.stock"] {
        let file = site.path("rules/servicenamemappings/shop").join(format!("{name}.yaml"));
        let text = fs::read_to_string(file)?;
        let named = text.lines().filter_map(|line| line.trim().strip_prefix("- "));
        ensure!(named.map(str::to_owned).collect::<BTreeSet<_>>() == all, "{text}");
    }
    Ok(())
}
