from pipework.serve.bulk.job_folder import StoreFolder, job_folder
from pipework.serve.bulk.ledger import PLAN, BulkPlan, Ledger
from tests.serve.bulk.test_job_folder import write


def test_a_plan_that_another_process_writes_now_is_no_foreign_file(monkeypatch):
    plan = BulkPlan.model_construct(model="topics")
    folder = job_folder("memory://bucket/out")
    names = StoreFolder.names

    def names_after_another(self, place=""):
        if self.read(PLAN) is None:
            write(folder, PLAN, plan.model_dump_json(indent=1).encode(), first=True)
        return names(self, place)

    monkeypatch.setattr(StoreFolder, "names", names_after_another)
    monkeypatch.setattr(Ledger, "check", lambda *_: None)
    Ledger(folder, plan)
