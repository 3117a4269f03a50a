//! How fast is written, and when nothing is.

use std::time::Duration;

use tokio::sync::watch;

use crate::site::{Plane, Site, eventually, programmed, status_of, versions};

#[tokio::test]
async fn two_hundred_rules_are_written_at_twenty_a_second_and_then_there_is_rest() {
    let site = Site::new("pace").await;
    let (lead, leads) = watch::channel(false);
    let plane = Plane::start(&site, leads).await;
    let mut client = plane.client(&site, "one");
    for n in 0..200 {
        site.rule(&format!("rule-{n:03}"), "=> region=$region").await;
    }
    let view = client.sees(200).await;
    client.applies(view, &[]);
    lead.send_replace(true);
    eventually("all are written", async || plane.written().len() >= 200).await;
    let writes: Vec<_> =
        plane.store.writes.lock().expect("whole").iter().map(|(at, _)| *at).collect();
    let took = writes[199] - writes[0];
    assert!(took >= Duration::from_secs(9), "200 in {took:?}");
    // A call may begin a little after it was decided.
    for window in writes.windows(21) {
        let span = window[20] - window[0];
        assert!(span >= Duration::from_millis(900), "more than 20 in {span:?}");
    }
    let all_stand = async || {
        let list = site.api().list(&Default::default()).await.expect("listed");
        list.iter().all(|rule| status_of(rule).is_some_and(|s| programmed(&s) == ("Applied", 1)))
    };
    eventually("all stand", all_stand).await;

    // An idle minute: no object moves. The issue names the minute.
    let before = versions(&site).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(versions(&site).await, before);
    assert_eq!(plane.written().len(), 200);

    // All clients come back with the same result: as good as nothing.
    drop(client);
    let mut client = plane.client(&site, "one");
    let view = client.sees(200).await;
    client.applies(view, &[]);
    site.rule("rule-007", "=> region=other").await;
    let view = client.sees_another().await;
    client.applies(view, &[]);
    let status = site.until("rule-007", |s| programmed(s) == ("Applied", 2)).await;
    assert_eq!((status.matched, status.applied), (1, 1));
    assert_eq!(plane.written().len(), 201);
}
