//! Tests that detect launchers from environment variables.

use super::*;

type Variables = &'static [(&'static str, &'static str)];

fn with<T>(variables: &[(&str, &str)], has_mpi: bool, then: impl FnOnce(&Environment<'_>) -> T) -> T {
    let variable =
        |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
    then(&Environment { variable: &variable, has_mpi })
}

#[test]
fn a_launcher_of_mpi_is_recognised_by_environment_variables() {
    let cases: [(Variables, Option<usize>); 10] = [
        (&[], None),
        (&[("OMPI_COMM_WORLD_SIZE", "1")], Some(1)),
        (&[("OMPI_COMM_WORLD_SIZE", "4")], Some(4)),
        (&[("PMI_SIZE", "2")], Some(2)),
        (&[("SLURM_STEP_NUM_TASKS", "2")], None),
        (&[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")], Some(2)),
        (&[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1")], None),
        (&[("PMI_SIZE", "two")], None),
        // mpirun inside a Slurm job: the step is that of its daemons, one on each node.
        (&[("OMPI_COMM_WORLD_SIZE", "8"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")], Some(8)),
        // mpirun in a container of a job that another launcher started.
        (
            &[
                ("OMPI_COMM_WORLD_SIZE", "8"),
                ("OMPI_COMM_WORLD_RANK", "3"),
                ("RANK", "0"),
                ("WORLD_SIZE", "2"),
                ("MASTER_ADDR", "pod-0"),
            ],
            Some(8),
        ),
    ];
    for (variables, expected) in cases {
        let launcher = with(variables, true, |environment| environment.launcher().unwrap());
        assert!(matches!(launcher, None | Some(Launcher::Mpi(_))), "{variables:?}");
        assert_eq!(launcher.map(|launcher| launcher.processes()), expected, "{variables:?}");
    }
}

#[test]
fn rank_size_and_address_make_a_rank() {
    const TORCHRUN: Variables = &[
        ("RANK", "3"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "node-0"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RUN_ID", "none"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_RANK", "1"),
    ];
    const SLURM: Variables = &[
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_PROCID", "2"),
        ("SLURM_LOCALID", "0"),
        ("MASTER_ADDR", "node-0"),
        ("PLIMSOLL_PORT", "4000"),
    ];
    const OPERATOR: Variables = &[
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "job-master-0"),
        ("MASTER_PORT", "23456"),
        ("PLIMSOLL_SECRET", "0123456789abcdef"),
    ];
    // Variables that repeat those of an MPI launcher ask for TCP.
    const REPEATED: Variables = &[
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "localhost"),
    ];
    for (variables, has_mpi, rank, size, local, port) in [
        (TORCHRUN, true, 3, 8, (Some(1), Some(2)), 29501),
        (SLURM, false, 2, 4, (Some(0), None), 4000),
        (OPERATOR, true, 1, 2, (None, None), 23456),
        (REPEATED, true, 1, 2, (None, None), 29500),
    ] {
        let launcher = with(variables, has_mpi, |environment| environment.launcher().unwrap());
        let Some(Launcher::Variables(member)) = launcher else { panic!("{variables:?}: {launcher:?}") };
        let actual = (member.rank, member.world_size, (member.local_rank, member.local_size), member.port);
        assert_eq!(actual, (rank, size, local, port), "{variables:?}");
        assert_eq!(member.secret.is_some(), variables == OPERATOR);
    }
    // With MPI, Slurm's tasks are ranks of MPI.
    assert!(matches!(with(SLURM, true, |e| e.launcher().unwrap()), Some(Launcher::Mpi(4))));
    const ALONE: Variables = &[("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "localhost")];
    assert!(with(ALONE, true, |environment| environment.launcher().unwrap()).is_none());
}

/// Variables of a rank that starts.
const RANK: Variables = &[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")];

#[test]
fn wrong_values_are_refused() {
    const NUMBER: &str = " is not a number from ";
    const EMPTY: &str = " is empty: set it to ";
    // Variables that replace those of a rank that starts, and the beginning of the refusal.
    let refused: [(Variables, String); 24] = [
        (&[("RANK", "one")], format!("RANK=one{NUMBER}0 to ")),
        (&[("RANK", "")], format!("RANK{EMPTY}")),
        (&[("RANK", "-1")], format!("RANK=-1{NUMBER}")),
        (&[("RANK", "2")], "RANK=2: there is no such rank, because WORLD_SIZE=2".to_owned()),
        (&[("WORLD_SIZE", "-2")], format!("WORLD_SIZE=-2{NUMBER}1 to ")),
        (&[("WORLD_SIZE", "0")], format!("WORLD_SIZE=0{NUMBER}1 to ")),
        (&[("WORLD_SIZE", "1")], "RANK=1: there is no such rank, because WORLD_SIZE=1".to_owned()),
        (&[("WORLD_SIZE", " ")], format!("WORLD_SIZE{EMPTY}")),
        (&[("LOCAL_RANK", "")], format!("LOCAL_RANK{EMPTY}")),
        (&[("LOCAL_RANK", "0,1")], format!("LOCAL_RANK=0,1{NUMBER}")),
        (&[("LOCAL_WORLD_SIZE", "0")], format!("LOCAL_WORLD_SIZE=0{NUMBER}")),
        (
            &[("LOCAL_RANK", "2"), ("LOCAL_WORLD_SIZE", "2")],
            "LOCAL_RANK=2: there is no such rank of a host, because LOCAL_WORLD_SIZE=2".to_owned(),
        ),
        (
            &[("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "3")],
            "WORLD_SIZE=2: a host has more, because LOCAL_WORLD_SIZE=3".to_owned(),
        ),
        (&[("LOCAL_WORLD_SIZE", "3")], "WORLD_SIZE=2: a host has more, because".to_owned()),
        (&[("MASTER_ADDR", "")], "MASTER_ADDR is empty: set it to the name or address of".to_owned()),
        (&[("MASTER_ADDR", "\t")], "MASTER_ADDR is empty".to_owned()),
        (&[("MASTER_ADDR", "node:29500")], "MASTER_ADDR=node:29500 is no name or address".to_owned()),
        (&[("MASTER_ADDR", "http://node")], "MASTER_ADDR=http://node is no name".to_owned()),
        (&[("MASTER_ADDR", "a b")], "MASTER_ADDR=a b is no name".to_owned()),
        (&[("MASTER_ADDR", "a..b")], "MASTER_ADDR=a..b is no name".to_owned()),
        (&[("MASTER_PORT", "70000")], format!("MASTER_PORT=70000{NUMBER}1 to 65535")),
        (&[("MASTER_PORT", "")], format!("MASTER_PORT{EMPTY}")),
        (&[("PLIMSOLL_PORT", "0")], format!("PLIMSOLL_PORT=0{NUMBER}1 to 65535")),
        (
            &[("PLIMSOLL_SECRET", "")],
            "PLIMSOLL_SECRET: it has 0 bytes, and at least 16 are needed".to_owned(),
        ),
    ];
    for (replaced, beginning) in refused {
        let variables: Vec<_> = replaced.iter().chain(RANK).copied().collect();
        let error = with(&variables, true, |environment| environment.launcher().unwrap_err());
        assert!(error.to_string().starts_with(&beginning), "{error}");
        assert_eq!(error.exit_status(), 2);
    }
    let last = [("MASTER_PORT", "65535"), ("TORCHELASTIC_USE_AGENT_STORE", "True")];
    let variables: Vec<_> = last.iter().chain(RANK).copied().collect();
    let error = with(&variables, true, |environment| environment.launcher().unwrap_err());
    assert!(error.to_string().contains("there is no port 65536"), "{error}");
}

#[test]
fn addresses_of_every_form_are_accepted() {
    for address in ["node-0", "a.b.c", "job_1.svc.", "10.0.0.1", "::1", "[fe80::1]", "not-yet.invalid"] {
        let variables: Vec<_> = [("MASTER_ADDR", address)].iter().chain(RANK).copied().collect();
        assert!(with(&variables, true, |environment| environment.launcher().is_ok()), "{address}");
    }
}

#[test]
fn seconds_of_a_start_are_a_number() {
    for (text, seconds) in [(None, Some(None)), (Some("5"), Some(Some(5))), (Some("5s"), None)] {
        let variables: Vec<_> = text.iter().map(|text| (START_SECONDS, *text)).collect();
        let read = with(&variables, true, |environment| environment.start_seconds());
        assert_eq!(read.ok(), seconds, "{text:?}");
    }
}

#[test]
fn wrong_values_are_refused_without_a_launcher() {
    for (name, value) in [
        (START_SECONDS, "5s"),
        (OWN_PORT, "http"),
        (SECRET, "short"),
        ("RANK", "one"),
        ("RANK", ""),
        ("WORLD_SIZE", "two"),
        ("WORLD_SIZE", "0"),
    ] {
        let checked = with(&[(name, value)], true, |environment| {
            environment.warning().and_then(|_| environment.check_own())
        });
        let refused = checked.unwrap_err();
        assert!(refused.exit_status() == 2 && refused.to_string().starts_with(name), "{refused}");
    }
}

#[test]
fn incomplete_variables_are_warned_about() {
    let warned: [(Variables, Option<&str>); 7] = [
        (&[], None),
        (&[("WORLD_SIZE", "1")], None),
        (&[("RANK", "0")], None),
        (&[("WORLD_SIZE", "4")], Some("WORLD_SIZE is 4, but RANK is not set")),
        (&[("WORLD_SIZE", "4"), ("RANK", "1")], Some("WORLD_SIZE is 4, but MASTER_ADDR is not set")),
        (&[("RANK", "2"), ("MASTER_ADDR", "a")], Some("RANK is 2, but WORLD_SIZE is not set")),
        (&[("WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_SIZE", "4")], None),
    ];
    for (variables, words) in warned {
        let warning = with(variables, true, |environment| environment.warning().unwrap());
        assert_eq!(warning.is_some(), words.is_some(), "{variables:?}: {warning:?}");
        assert!(warning.is_none_or(|text| text.starts_with(words.unwrap_or_default())), "{variables:?}");
    }
}
