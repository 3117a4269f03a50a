//! Whatever happens in whatever order: the rates hold, what stands at the end is right, and
//! then there is rest.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Happening {
    Write { rule: u8, same: bool },
    Break { rule: u8 },
    Delete { rule: u8 },
    Recreate { rule: u8 },
    Connect,
    Disconnect { client: u8 },
    Hear { client: u8 },
    Apply { client: u8 },
    Refuse { client: u8, rule: u8 },
    Pass { ms: u64 },
    Fail { forbidden: bool },
    Mend,
    Overwrite { rule: u8 },
    Restart,
    Lead { leads: bool },
}

fn happening() -> impl Strategy<Value = Happening> {
    use Happening::*;
    let rule = 0..6_u8;
    let client = 0..6_u8;
    prop_oneof![
        4 => (rule.clone(), any::<bool>()).prop_map(|(rule, same)| Write { rule, same }),
        1 => rule.clone().prop_map(|rule| Break { rule }),
        1 => rule.clone().prop_map(|rule| Delete { rule }),
        1 => rule.clone().prop_map(|rule| Recreate { rule }),
        2 => Just(Connect),
        1 => client.clone().prop_map(|client| Disconnect { client }),
        2 => client.clone().prop_map(|client| Hear { client }),
        5 => client.clone().prop_map(|client| Apply { client }),
        2 => (client, rule.clone()).prop_map(|(client, rule)| Refuse { client, rule }),
        6 => (1..15_000_u64).prop_map(|ms| Pass { ms }),
        1 => any::<bool>().prop_map(|forbidden| Fail { forbidden }),
        2 => Just(Mend),
        1 => rule.prop_map(|rule| Overwrite { rule }),
        1 => Just(Restart),
        1 => any::<bool>().prop_map(|leads| Lead { leads }),
    ]
}

/// What the test knows of a rule.
#[derive(Clone, Copy, Debug, Default)]
struct Rule {
    generation: i64,
    /// The value in force, and whether the current generation is that.
    value: Option<u32>,
    valid: bool,
}

/// A client, and what it said last: what it holds and what it refused, by rule.
struct Known {
    client: Client,
    holds: BTreeMap<u8, u32>,
    refused: BTreeMap<u8, u32>,
}

struct World {
    bench: Bench,
    clients: Vec<Known>,
    rules: BTreeMap<u8, Rule>,
    values: u32,
    uids: u32,
}

impl World {
    fn happens(&mut self, happening: &Happening) {
        let client = |n: u8, clients: &[Known]| (n as usize) % clients.len().max(1);
        let valid = |rule: &u8| self.rules.get(rule).is_some_and(|known| known.valid);
        match *happening {
            Happening::Write { rule, same } => {
                let known = self.rules.entry(rule).or_default();
                self.values += 1;
                let value = known.value.filter(|_| same).unwrap_or(self.values);
                *known = Rule { generation: known.generation + 1, value: Some(value), valid: true };
                self.bench.rule(&rule.to_string(), known.generation, value);
            }
            Happening::Break { rule } => {
                let known = self.rules.entry(rule).or_default();
                *known = Rule { generation: known.generation + 1, valid: false, ..*known };
                self.bench.bad(&rule.to_string(), known.generation, known.value);
            }
            // One that is only a problem cannot be removed by an event.
            Happening::Delete { rule } if valid(&rule) => {
                self.rules.remove(&rule);
                self.bench.delete(&rule.to_string());
            }
            // Later writings are of the first one again, which is another object.
            Happening::Recreate { rule } if valid(&rule) => {
                self.values += 1;
                self.uids += 1;
                let (value, name) = (self.values, rule.to_string());
                let known = Rule { generation: 1, value: Some(value), valid: true };
                self.rules.insert(rule, known);
                self.bench.objects.remove(&id(&name));
                let mut stored = self.bench.stored(&name, 1, value);
                stored.version.uid = format!("uid {}", self.uids).into();
                self.bench.put(stored);
            }
            Happening::Connect if self.clients.len() < 6 => {
                self.values += 1;
                let client = self.bench.connect(&format!("app-{}", self.values));
                let (holds, refused) = Default::default();
                self.clients.push(Known { client, holds, refused });
            }
            Happening::Disconnect { client: n } if !self.clients.is_empty() => {
                self.clients.remove(client(n, &self.clients));
            }
            Happening::Hear { client: n } if !self.clients.is_empty() => {
                let at = client(n, &self.clients);
                self.clients[at].client.view(self.bench.now);
            }
            Happening::Apply { client: n } if !self.clients.is_empty() => {
                let at = client(n, &self.clients);
                self.answer(at, None);
            }
            Happening::Refuse { client: n, rule } if !self.clients.is_empty() => {
                let at = client(n, &self.clients);
                self.answer(at, Some(rule));
            }
            Happening::Pass { ms: time } => self.bench.pass(ms(time)),
            Happening::Fail { forbidden } => {
                let code = if forbidden { Code::StoreForbidden } else { Code::StoreDown };
                self.bench.fails = Some(Failure { code, reason: "no".into() });
            }
            Happening::Mend => self.bench.fails = None,
            Happening::Overwrite { rule } => {
                // Somebody else writes, and a plane that begins anew sees it.
                if let Some(status) = self.bench.objects.get_mut(&id(&rule.to_string())) {
                    status["matched"] = Value::from(77);
                }
                self.restart();
            }
            Happening::Restart => self.restart(),
            Happening::Lead { leads } => self.bench.lead(leads),
            _ => {}
        }
        self.bench.settle();
    }

    fn answer(&mut self, at: usize, but: Option<u8>) {
        let known = &mut self.clients[at];
        let refuses = but.map(|rule| format!("{rule}/default"));
        let refuses: Vec<_> = refuses.iter().map(String::as_str).collect();
        known.client.applies(self.bench.now, &refuses);
        let in_force = self.rules.iter().filter_map(|(rule, r)| Some((*rule, r.value?)));
        (known.refused, known.holds) = in_force.partition(|(rule, _)| but == Some(*rule));
    }

    /// What must stand in the end.
    fn check(&self) -> Result<(), TestCaseError> {
        for (rule, known) in &self.rules {
            let name = rule.to_string();
            let status = self.bench.status(&name);
            let count = |holds: fn(&Known) -> &BTreeMap<u8, u32>| {
                let holds = |k: &&Known| holds(k).get(rule).copied() == known.value;
                known.value.map_or(0, |_| self.clients.iter().filter(holds).count() as i64)
            };
            let matched = known.value.map_or(0, |_| self.clients.len() as i64);
            let (applied, rejected) = (count(|k| &k.holds), count(|k| &k.refused));
            prop_assert_eq!(status.observed_generation, known.generation, "{}", name);
            let counts = (status.matched, status.applied, status.rejected);
            prop_assert_eq!(counts, (matched, applied, rejected), "{}", name);
            let last = status.last_accepted.as_ref().map(|last| last.spec["value"].as_u64());
            let kept = known.value.filter(|_| !known.valid).map(|value| Some(u64::from(value)));
            prop_assert_eq!(last, kept, "{}", name);
            let accepted = self.bench.condition(&name, ACCEPTED);
            prop_assert_eq!(accepted.status == True, known.valid);
            let (_, reason, generation) = self.bench.programmed(&name);
            prop_assert_eq!(generation, known.generation);
            let possible: &[&str] = match (known.valid, known.value, rejected) {
                (false, None, _) => &["Invalid"],
                (false, Some(_), _) => &["LastGood"],
                (true, _, 1..) => &["Rejected"],
                (true, ..) if matched == 0 => &["NoClients"],
                (true, ..) if matched == applied => &["Applied"],
                // It may have latched before somebody came who is silent.
                (true, ..) => &["Lagging", "Applied", "NoClients"],
            };
            prop_assert!(possible.contains(&reason.as_str()), "{}: {}", name, reason);
        }
        Ok(())
    }

    fn restart(&mut self) {
        // The rollout is the bench's, so that clients stay.
        self.bench.lead(false);
        self.bench.pass(secs(2));
        self.bench.lead(true);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_ends_with_what_is_wanted_and_then_rests(
        happenings in proptest::collection::vec(happening(), 1..80)
    ) {
        let (clients, rules) = Default::default();
        let mut world = World { bench: Bench::new(), clients, rules, values: 0, uids: 0 };
        for happening in &happenings {
            world.happens(happening);
        }
        // Streams hear of views by themselves; what clients do about it is theirs.
        let now = world.bench.now;
        world.clients.iter_mut().for_each(|known| drop(known.client.view(now)));
        let bench = &mut world.bench;
        bench.lead(true);
        bench.settle();
        bench.fails = None;
        bench.pass(secs(200));
        super::pace::check_rates(&bench.writes);
        bench.written();
        world.check()?;
        world.bench.pass(secs(60));
        world.bench.settle();
        prop_assert_eq!(world.bench.written(), 0, "an idle minute");
        prop_assert_eq!(world.bench.planner.deadline(), None);
    }
}
