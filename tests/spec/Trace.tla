------------------------------- MODULE Trace -------------------------------
(* Whether an observed run is a behaviour of the specification. `Observed` is a generated module (tests/spec/traces.py): Events, the steps of
   all nodes and of the controller in the order in which they happened. Step i must be allowed in the state after step i - 1, and where the
   recorder saw the replica afterwards, the specification must be in the same state. TLC then reports the depth Len(Events) + 1. *)
EXTENDS Safety, Observed

VARIABLE next

(* What was seen of the replica after the step. *)
Seen(e) ==
    e.after # None =>
        LET n == e.node s == e.after IN
        /\ term'[n] = s.term /\ vote'[n] = s.vote /\ role'[n] = s.role
        /\ End(log'[n]) = s.end /\ synced'[n] = s.synced /\ commit'[n] = s.commit

(* A process starts: for the first time, after a crash, or with another directory. *)
Start(e) ==
    LET n == e.node
        left == [terms |-> e.terms, configs |-> Prefix(log[n], Len(e.terms)).configs]
        risen == {old \in cut[n] : Prefix(old, Len(e.terms)).terms = e.terms}
        whole == IF Prefix(log[n], Len(e.terms)).terms = e.terms THEN Prefix(log[n], Len(e.terms))
                 ELSE IF risen # {} THEN Prefix(CHOOSE old \in risen : TRUE, Len(e.terms)) ELSE left
    IN IF e.directory = dir[n] THEN Restart(n, whole, e.after.commit)
       ELSE Wipe(n) /\ dir'[n] = e.directory

Change(e) == \E change \in Successors(Members(e.node), End(log[e.node]) + 1, dir) :
    change.members = e.members /\ ChangeMembers(e.node, change)

Observe(e) ==
    CASE e.do = "start"    -> Start(e)
      [] e.do = "campaign" -> Campaign(e.node)
      [] e.do = "vote"     -> \E r \in asked : r.from = e.for /\ r.term = e.term /\ Vote(e.node, r)
      [] e.do = "win"      -> Win(e.node)
      [] e.do = "hear"     -> HearTerm(e.node, e.term)
      [] e.do = "append"   -> IF e.members = None THEN AppendEntries(e.node, e.to - End(log[e.node])) ELSE Change(e)
      [] e.do = "receive"  -> /\ reign[e.term] # None /\ reign[e.term].leader = e.leader
                              /\ Receive(e.node, e.term, 0, e.to)
      [] e.do = "sync"     -> Sync(e.node, e.to)
      [] e.do = "reply"    -> \/ Reply(e.node, e.at) /\ (e.sound => Counts(e.node))
                              \/ /\ ~(role[e.leader] = "leads" /\ term[e.leader] = e.term) \/ term[e.node] # e.term
                                 /\ e.at <= Claim(e.node)
                                 /\ UNCHANGED vars
      [] e.do = "commit"   -> Commit(e.node, e.to)
      [] e.do = "follow"   -> FollowCommit(e.node, e.to)
      [] e.do = "learn"    -> Learn(e.node, e.number)
      [] e.do = "office"   -> TakeOffice(e.node) /\ term'[e.node] = e.term
      [] e.do = "master"   -> AskMaster(e.node, e.for)
      [] e.do = "set"      -> AskSet(e.node, e.wanted)
      [] e.do = "decide"   -> Decide(e.ask) /\ Present' = e.made

TraceNext ==
    /\ next <= Len(Events)
    /\ next' = next + 1
    /\ Observe(Events[next])
    /\ Seen(Events[next])

TraceSpec == Init /\ next = 1 /\ [][TraceNext]_<<vars, next>>
=============================================================================
